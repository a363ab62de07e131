"""A Ray cluster on this machine only, for experiments and tests.

Import this module before `ray`, which reads the environment when it is imported. The
cluster listens only on the loopback address, and ends with the block:

    with local_cluster(cpus=2):
        handle = serve.run(application())
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Otherwise Ray uses a public address of the machine, even for 127.0.0.1.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray
from ray import serve

LOOPBACK = "127.0.0.1"


@contextmanager
def local_cluster(cpus: int = 2, port: int | None = None) -> Iterator[Path]:
    """Starts Ray and Ray Serve, without a dashboard, and stops both at the end.

    Args:
        cpus: Number of cores for Ray; a replica takes one by default.
        port: HTTP port; without it, deployments can be reached only by handles.

    Yields:
        The folder of logs.
    """
    # The processes that Ray starts import modules from this file's folder.
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
    """Makes replicas listen on the loopback address; runs first in each Ray process.

    Each replica has a port for calls between deployments. Ray 2.60 opens it on all
    addresses of the machine, regardless of the node's address.
    """
    from ray.serve._private import replica

    open_port = replica.add_port_to_grpc_server

    def open_on_loopback(server: object, address: str) -> int:
        return open_port(server, address.replace("[::]", LOOPBACK))

    replica.add_port_to_grpc_server = open_on_loopback
