"""A cluster of Ray on this machine alone, for experiments and tests.

Import this module before `ray`, which reads the environment when it is imported. What
Ray opens listens on the loopback address, and ends with the block:

    with local_cluster(cpus=2):
        handle = serve.run(application())
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Ray takes a public address of the machine otherwise, even for 127.0.0.1.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray
from ray import serve

LOOPBACK = "127.0.0.1"


@contextmanager
def local_cluster(cpus: int = 2, port: int | None = None) -> Iterator[Path]:
    """Starts Ray and Ray Serve, without a dashboard, and ends both.

    Args:
        cpus: Cores that Ray hands out; a replica takes one by default.
        port: For HTTP; without it, only handles reach deployments.

    Yields:
        The folder of logs.
    """
    # The processes that Ray starts import what lies beside this file.
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parent)
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as own:
        ray.init(
            num_cpus=cpus,
            include_dashboard=False,
            object_store_memory=100 * 2**20,
            runtime_env={"worker_process_setup_hook": f"{__name__}.stay_on_loopback"},
            _node_ip_address=LOOPBACK,
            _temp_dir=own,
        )
        try:
            serve.start(
                proxy_location="Disabled" if port is None else "HeadOnly",
                http_options={"host": LOOPBACK, "port": port or 0},
            )
            yield Path(own, "session_latest", "logs")
        finally:
            serve.shutdown()
            ray.shutdown()


def stay_on_loopback() -> None:
    """Runs first in each process of Ray: replicas, too, listen on the loopback address.

    Each replica has a port for calls between deployments, which Ray 2.60 opens on all
    addresses of the machine, whatever the node's address is.
    """
    from ray.serve._private import replica

    open_port = replica.add_port_to_grpc_server

    def open_on_loopback(server: object, address: str) -> int:
        return open_port(server, address.replace("[::]", LOOPBACK))

    replica.add_port_to_grpc_server = open_on_loopback
