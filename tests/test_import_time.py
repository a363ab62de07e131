"""Importing edbatch costs little more than importing JAX."""

import subprocess
import sys

LIMIT_S = 1.5
# -P: the installed package, not the current folder's.
MEASURE = [
    sys.executable,
    "-P",
    "-c",
    "import time, jax; start = time.perf_counter(); import edbatch; "
    "print(time.perf_counter() - start)",
]


def import_time_s() -> float:
    done = subprocess.run(MEASURE, capture_output=True, text=True, check=True)
    return float(done.stdout)


def test_import_adds_little_to_that_of_jax() -> None:
    best = min(import_time_s() for _ in range(3))
    assert best < LIMIT_S, (
        f"`import edbatch` takes {best:.2f} s after `import jax`; find the slow "
        "import with `python -X importtime -c 'import edbatch'`"
    )
