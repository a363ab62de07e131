"""Runs programs in several processes with one CPU device each."""

import os
import socket
import subprocess
import sys
import time

LIMIT_S = 300


def free_address():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return "127.0.0.1:{1}".format(*found.getsockname())


def run_processes(program, count, folder, **environment):
    """Runs ``program ADDRESS COUNT PROCESS`` in each process.

    Returns the output of each, stderr included. Once one fails, or time is up, the
    others are killed, since they would wait for it.
    """
    address = free_address()
    logs = [folder / f"process-{count}-{k}.log" for k in range(count)]
    started = []
    try:
        for k, log in enumerate(logs):
            with log.open("w") as output:
                each = subprocess.Popen(
                    [sys.executable, "-P", program, address, str(count), str(k)],
                    env=os.environ | {"JAX_NUM_CPU_DEVICES": "1"} | environment,
                    cwd=folder,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            started.append(each)
        _wait(started)
    finally:
        for each in started:
            each.kill()  # no effect on one that has ended
            each.wait()
    printed = [log.read_text() for log in logs]
    assert not any(each.returncode for each in started), "\n".join(printed)
    return printed


def _wait(started):
    """Waits until all processes have ended, one has failed or time is up."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        codes = [each.poll() for each in started]
        if None not in codes or any(codes):
            return
        time.sleep(0.05)
