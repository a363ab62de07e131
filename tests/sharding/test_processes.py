"""Two processes of one device each against one process."""

from processes import run_processes


def test_results_and_gradients_are_those_of_one_process(project_root, tmp_path):
    tests = project_root / "tests"
    program = tests / "sharding" / "job.py"
    printed = run_processes(program, 2, tmp_path, PYTHONPATH=str(tests))
    for k, text in enumerate(printed):
        assert f"process {k} of 2: results agree" in text
