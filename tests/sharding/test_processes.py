"""Two processes with one device each, compared with one process."""

import pytest
from processes import run_processes

pytestmark = pytest.mark.usefixtures("quick_compiles")


def test_results_and_gradients_are_those_of_one_process(project_root, tmp_path):
    tests = project_root / "tests"
    program = tests / "sharding" / "job.py"
    printed = run_processes(program, 2, tmp_path, PYTHONPATH=str(tests))
    for k, text in enumerate(printed):
        assert f"process {k} of 2: results agree" in text


def test_a_process_that_fails_ends_the_others(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, time\n"
        "if sys.argv[3] == '1':\n"
        "    raise SystemExit('broken')\n"
        "time.sleep(600)\n"
    )
    with pytest.raises(AssertionError, match="broken"):
        run_processes(program, 2, tmp_path)
