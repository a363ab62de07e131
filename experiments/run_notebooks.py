"""Runs the notebooks again and stores their outputs.

The stored outputs contain no path, time or version, so that notebooks with the same
output are identical. In a clone:

    pip install -e ".[dev]"
    python experiments/run_notebooks.py
    python experiments/run_notebooks.py experiments/notebooks/all_workloads.ipynb
"""

import argparse
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parent / "notebooks"


def execute(notebook: nbformat.NotebookNode, folder: Path) -> None:
    """Runs a notebook in a folder, and fills in its outputs."""
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(
        notebook, timeout=600, record_timing=False, resources=resources
    ).execute()
    notebook.metadata["language_info"] = {"name": "python"}


def parse() -> list[Path]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    text = "Which notebooks to run (default: all)."
    parser.add_argument("notebooks", nargs="*", type=Path, help=text)
    return parser.parse_args().notebooks or sorted(NOTEBOOKS.glob("*.ipynb"))


if __name__ == "__main__":
    for path in parse():
        notebook = nbformat.read(path, as_version=4)
        with tempfile.TemporaryDirectory() as empty:
            execute(notebook, Path(empty))
        nbformat.write(notebook, path)
        print(f"{path.name}: done")
