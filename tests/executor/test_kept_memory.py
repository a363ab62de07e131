"""Tests `eb.keep_memory`: freed pages stay mapped for the next call."""

import subprocess
import sys

import pytest

import edbatch as eb

# Counts page faults of a block of 64 MiB that is written and freed several times.
SCRIPT = """
import ctypes, resource, sys
import edbatch as eb
kept = sys.argv[1] == "keep" and eb.keep_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
def use():
    block = libc.malloc(1 << 26)
    libc.memset(block, 1, 1 << 26)
    libc.free(block)
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use()
before = faults()
for _ in range(4):
    use()
print(int(kept), faults() - before)
"""


def pages(how):
    run = [sys.executable, "-c", SCRIPT, how]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    return [int(each) for each in done.stdout.split()]


def test_pages_are_mapped_once():
    kept, mapped = pages("keep")
    if not kept:
        pytest.skip("this C library has no such setting")
    assert mapped < 100
    assert pages("as it is")[1] > 100 * max(1, mapped)


def test_a_library_without_the_setting_is_left_as_it_is(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    assert eb.keep_memory() is False
