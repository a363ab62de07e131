"""Numba compiles each function of the memory planner once, in a cold cache."""

import os
import subprocess
import sys

import pytest

COUNT = """
from collections import Counter
import numba.core.event as event
import jax, numpy as np, edbatch as eb
from edbatch.models import get_workload

compiled = Counter()

class Counts(event.Listener):
    def on_start(self, started):
        function = started.data["dispatcher"].py_func
        if function.__module__.startswith("edbatch."):
            compiled[f"{function.__module__}.{function.__qualname__}"] += 1
    def on_end(self, ended):
        pass

event.register("numba:compile", Counts())
workload = get_workload("tree-lstm")
params = workload.init_params(jax.random.key(0), 4)
instances = workload.sample(np.random.default_rng(0), 4)
eb.batch(workload.model, params=params).plan(instances)
for name, count in compiled.items():
    print(count, name)
"""


@pytest.mark.slow
def test_no_function_is_compiled_for_a_literal(tmp_path):
    """A literal argument has its own Numba type, so all callees would compile again."""
    cold = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    words = [sys.executable, "-c", COUNT]
    found = subprocess.run(words, env=cold, check=True, capture_output=True, text=True)
    lines = found.stdout.splitlines()
    assert any("alignment.align" in line for line in lines), found.stdout
    again = [line for line in lines if not line.startswith("1 ")]
    assert not again, "compiled more than once: " + ", ".join(again)
