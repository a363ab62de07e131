"""Runs the tests that need two devices, in one process that has them."""

import os
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.usefixtures("quick_compiles")

LIMIT_S = 600


def test_all_that_need_two_devices(project_root, tmp_path):
    command = [
        *(sys.executable, "-P", "-m", "pytest", "-m", "devices"),
        *("-p", "no:cacheprovider", "-c", project_root / "pyproject.toml"),
        project_root / "tests" / "sharding",
    ]
    done = subprocess.run(
        command,
        env=os.environ | {"JAX_NUM_CPU_DEVICES": "2"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    summary = re.search(r"=+ (\d+) passed, \d+ deselected in .*\n$", done.stdout)
    assert summary, done.stdout + done.stderr
    assert int(summary[1]) > 10
