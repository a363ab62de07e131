"""A process exits at once and cleanly, whatever the background thread is doing."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import atexit, sys, threading, time

def tell():  # after all that was registered later, so after the thread was stopped
    if any(each.name == "edbatch-compile" for each in threading.enumerate()):
        print("compiles", flush=True)
    else:
        print("traced" if traced else "stopped", flush=True)

traced = []
atexit.register(tell)
import jax, jax.numpy as jnp
import edbatch as eb
from edbatch.compilation import kept_fine
from edbatch.compilation.worker import WORKER

where, seconds = sys.argv[1], float(sys.argv[2])
sizes = {"trace": 2000, "compile": 150, "fill": 250, "read": 250}
eb.use_compilation_cache()
kept_fine.LARGE_BYTES = 0

class Tiered:
    def __init__(self, tier="fine"):
        self.tier = tier
    def in_tier(self, tier):
        return self if tier == self.tier else Tiered(tier)

jax.tree_util.register_pytree_node(
    Tiered, lambda each: ((), each.tier), lambda tier, _: Tiered(tier)
)

def function(x, plan):
    for _ in range(sizes[where] if plan.tier == "fine" else 1):
        x = jax.lax.fori_loop(0, 3, lambda i, x: jnp.sin(x @ x) + i, x)
    if plan.tier == "fine":
        traced.append(True)
    return x

jitted = eb.jit(function, tiers="auto")
for _ in range(3):
    jitted(jnp.ones((8, 8)), Tiered())
if where == "fill":
    assert eb.wait_for_compilations(200)
elif where != "trace":
    while not WORKER.in_compiler and not eb.wait_for_compilations(0.001):
        pass
time.sleep(seconds)
print("busy" if not eb.wait_for_compilations(0) else "idle", flush=True)
if len(sys.argv) > 3:
    raise ValueError("the end")
"""
LIMIT_S = 200.0  # time limit of a process that hangs


def run(tmp_path, *arguments, cache="off"):
    """Runs the program; returns the thread's state before and after the end."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-P", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "EDBATCH_CACHE_DIR": str(cache)},
    )
    before, after = done.stdout.split()
    return done, before, after


@pytest.mark.parametrize(
    ("where", "seconds"),
    [("trace", 0.0), ("trace", 0.3), ("compile", 0.0), ("compile", 0.1)],
)
def test_exit_neither_waits_nor_crashes(tmp_path, where, seconds):
    done, before, after = run(tmp_path, where, seconds)
    assert (done.returncode, done.stderr) == (0, "")
    assert before == "busy"
    # A trace is stopped; the compiler cannot be stopped and keeps running.
    assert after == {"trace": "stopped", "compile": "compiles"}[where]


def test_exit_while_a_program_of_the_cache_is_read(tmp_path):
    cache = tmp_path / "programs"
    done, before, _ = run(tmp_path, "fill", 0.0, cache=cache)
    assert (done.returncode, done.stderr, before) == (0, "", "idle")
    done, before, _ = run(tmp_path, "read", 0.0, cache=cache)
    assert (done.returncode, done.stderr, before) == (0, "", "busy")


def output_of(program):
    """Runs a program, which must exit cleanly; returns its output."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


STUCK = """
import threading
from edbatch.compilation.worker import WORKER

reads = threading.Event()

def read():
    WORKER.at_compiler(True, reads=True)
    reads.set()
    threading.Event().wait()

WORKER.submit(read)
assert reads.wait(60)
"""


def test_exit_waits_no_longer_for_a_read_that_does_not_end():
    assert output_of(STUCK) == ""


HOLDS_THE_LOCK = """
import threading, time
from edbatch.compilation.worker import WORKER

begun = threading.Event()

def trace():
    begun.set()
    try:
        while True:
            time.sleep(0.001)
    except BaseException:
        WORKER._condition.acquire()  # as where it is stopped on the way out of it

WORKER.submit(trace)
assert begun.wait(60)
"""


def test_exit_needs_no_lock_that_the_stopped_thread_holds():
    assert output_of(HOLDS_THE_LOCK) == ""


@pytest.mark.slow
def test_exit_at_any_moment(tmp_path):
    for seconds in range(30):
        done, _, _ = run(tmp_path, "compile", seconds / 15)
        assert (done.returncode, done.stderr) == (0, ""), seconds


def test_an_error_is_the_exit_code(tmp_path):
    done, before, _ = run(tmp_path, "compile", 0.0, "raise")
    assert done.returncode == 1 and before == "busy"
    assert done.stderr.splitlines()[-1] == "ValueError: the end"


WAITING = """
import atexit
import threading

def wait():  # after what was registered later, so after the thread was stopped
    for each in (compiles, waits, WORKER.submit(print)):
        try:
            print(each.wait(), flush=True)
        except eb.CompilationError as error:
            print(str(error).split(",")[0], flush=True)
    print(eb.wait_for_compilations(), flush=True)

atexit.register(wait)
import edbatch as eb
from edbatch.compilation.worker import WORKER

begun = threading.Event()

def compile():
    WORKER.at_compiler(True)
    begun.set()
    threading.Event().wait()

compiles, waits = WORKER.submit(compile), WORKER.submit(print)
assert begun.wait(60)
"""


def test_who_waits_at_exit_is_told_that_nothing_is_compiled_any_more():
    assert output_of(WAITING).splitlines() == 3 * ["this process is ending"] + ["True"]
