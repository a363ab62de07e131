"""The notebooks run top to bottom, and are committed clean, with their outputs."""

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

PROJECT_ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((PROJECT_ROOT / "experiments" / "notebooks").glob("*.ipynb"))
NEEDS = "needs nbclient and ipykernel: pip install 'edbatch[dev]'"
TREES = (
    "(S (NP (DT a) (NN dog)) (VP (VBZ barks) (RB twice)))\n(S (NP cats) (VP purr))\n"
)

# New values for the cell tagged "parameters"; "trees" stands for a file.
TINY: dict[str, dict[str, Any]] = {
    "all_workloads": {
        "workload_names": ["tree-lstm", "tree-gru"],
        "data": {"tree-gru": ["trees"]},
        "batch_sizes": [1, 2],
        "trained_at": 2,
        "num_minibatches": 1,
        "num_instances": 2,
        "search_width": 1,
    },
    "batches_against_time": {
        "workload_name": "tree-lstm-2type",
        "policy_names": ["agenda", "greedy", "learned"],
        "batch_size": 2,
        "hidden_sizes": [4],
        "rounds": 1,
        "repeats": 1,
    },
    "one_minibatch_four_schedules": {
        "workload_name": "tree-lstm-2type",
        "num_instances": 3,
        "exact_ms": 10.0,
    },
    "what_a_policy_learned": {
        "workload_name": "tree-lstm-2type",
        "data": ["trees"],
        "num_instances": 2,
        "batch_size": 1,
        "max_states": 2,
    },
    "what_learning_brings": {
        "workload_names": ["tree-lstm-2type"],
        "batch_size": 4,
        "num_minibatches": 2,
        "num_instances": 15,
        "trials": 3,
        "seeds": [0],
        "search_width": 1,
    },
    "your_own_model": {
        "num_instances": 24,
        "batch_size": 4,
        "num_minibatches": 2,
        "operations": (5, 30),
        "hidden": 4,
        "trials": 5,
        "rounds": 1,
    },
}


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def outputs(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [output for cell in code_cells(notebook) for output in cell["outputs"]]


def figures(notebook: dict[str, Any]) -> int:
    return sum("image/png" in each.get("data", {}) for each in outputs(notebook))


def check_outputs(notebook: dict[str, Any]) -> None:
    """Every cell ran, in order, with nothing on stderr; every plot is shown."""
    cells = code_cells(notebook)
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    kinds = {each["output_type"] for each in outputs(notebook)}
    assert kinds == {"stream", "execute_result"}
    assert "stderr" not in {each.get("name") for each in outputs(notebook)}
    drawn = [cell for cell in cells if "".join(cell["source"]).startswith("plot_")]
    assert figures(notebook) == len(drawn) > 0


def set_parameters(notebook: Any, values: dict[str, Any]) -> None:
    """Adds a cell with other values below the one tagged "parameters"."""
    from nbformat.v4 import new_code_cell

    (place,) = [
        k
        for k, cell in enumerate(notebook.cells)
        if "parameters" in cell.metadata.get("tags", [])
    ]
    for name in values:
        assert f"\n{name} = " in f"\n{notebook.cells[place].source}"
    lines = [f"{name} = {value!r}" for name, value in values.items()]
    notebook.cells.insert(place + 1, new_code_cell("\n".join(lines)))


def test_every_notebook_is_run():
    assert [path.stem for path in NOTEBOOKS] == [*TINY]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_on_samples_and_on_files(path, tmp_path, monkeypatch):
    nbformat = pytest.importorskip("nbformat", reason=NEEDS)
    pytest.importorskip("nbclient", reason=NEEDS)
    pytest.importorskip("ipykernel", reason=NEEDS)
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    trees = tmp_path / "trees.ptb"
    trees.write_text(TREES)
    values = json.dumps(TINY[path.stem]).replace('"trees"', json.dumps(str(trees)))
    notebook = nbformat.read(path, as_version=4)
    set_parameters(notebook, json.loads(values))
    script = runpy.run_path(str(PROJECT_ROOT / "experiments" / "run_notebooks.py"))
    script["execute"](notebook, tmp_path)
    check_outputs(notebook)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_committed_clean_and_with_outputs(path):
    text = path.read_text(encoding="utf-8")
    assert len(text) < 1_000_000
    notebook = json.loads(text)
    check_outputs(notebook)
    assert notebook["metadata"] == {
        "kernelspec": {
            "display_name": "Python 3",
            "language": "python",
            "name": "python3",
        },
        "language_info": {"name": "python"},
    }
    assert all(cell["metadata"].keys() <= {"tags"} for cell in notebook["cells"])
    words = re.sub(r'"image/png": "[^"]*"', "", text)
    assert not re.findall(r'(?<![\w.])/\w+/[^"\s]*', words), "no path of a machine"
    assert not re.search(r"@[A-Z]+@|TODO", words)
