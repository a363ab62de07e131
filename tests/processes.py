"""Programs that run in several processes of one CPU device each."""

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


def run_processes(program, count, folder, **environment):
    """Runs ``program ADDRESS COUNT PROCESS`` in each process.

    Returns what each printed, errors included. All of them end here: by themselves,
    and well, or killed.
    """
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
            stack.enter_context(each)  # leaving it waits, so it is killed before that
            stack.callback(each.kill)
            started.append(each)
        printed = [each.communicate(timeout=LIMIT_S)[0] for each in started]
    assert not any(each.returncode for each in started), "\n".join(printed)
    return printed
