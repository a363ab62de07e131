"""Two processes of one device each against one process."""

import os
import socket
import subprocess
import sys
from contextlib import ExitStack

LIMIT_S = 300


def free_address():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return "127.0.0.1:{1}".format(*found.getsockname())


def run_processes(program, count, environment, folder):
    """Runs a program in several processes; what each printed, if all end well."""
    address = free_address()
    with ExitStack() as stack:
        started = []
        for k in range(count):
            each = subprocess.Popen(
                [sys.executable, "-P", program, address, str(count), str(k)],
                env=os.environ | {"JAX_NUM_CPU_DEVICES": "1"} | environment,
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            stack.callback(each.kill)  # nothing happens to one that has ended
            started.append(each)
        printed = [each.communicate(timeout=LIMIT_S)[0] for each in started]
    assert not any(each.returncode for each in started), "\n".join(printed)
    return printed


def test_results_and_gradients_are_those_of_one_process(project_root, tmp_path):
    tests = project_root / "tests"
    printed = run_processes(
        tests / "sharding" / "job.py", 2, {"PYTHONPATH": str(tests)}, tmp_path
    )
    for k, text in enumerate(printed):
        assert f"process {k}: 2 compilations, results agree" in text
