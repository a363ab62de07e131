"""The modules of edbatch have no import cycles.

Imports inside functions and under `TYPE_CHECKING` count: they hide a cycle from
Python, not from a reader of the modules. Inside one package, an `__init__.py` that
re-exports its modules does not count as one of them.
"""

import ast
from collections.abc import Iterable
from pathlib import Path

import pytest
from test_import_direction import PROJECT_ROOT, imports, module_files, write


def import_graph(root: Path) -> dict[str, set[str]]:
    """The modules of the sources that each module imports, without packages."""
    files = dict(module_files(root))
    modules = {name for name, file in files.items() if file.name != "__init__.py"}
    graph: dict[str, set[str]] = {}
    for module in modules:
        tree = ast.parse(files[module].read_text())
        graph[module] = modules & {name for _, name in imports(tree)}
        for node in ast.walk(tree):  # `from edbatch.graph import lineage`
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                graph[module] |= modules & names
    return graph


def cycles(graph: dict[str, set[str]]) -> list[tuple[str, ...]]:
    """Strongly connected components of more than one module or with a self-import."""
    reached = {module: reachable(graph, graph[module]) for module in graph}
    return sorted(
        {
            tuple(
                sorted(other for other in reached[module] if module in reached[other])
            )
            for module in graph
            if module in reached[module]
        }
    )


def reachable(graph: dict[str, set[str]], start: Iterable[str]) -> set[str]:
    found: set[str] = set()
    waiting = list(start)
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting += graph[module]
    return found


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = import_graph(PROJECT_ROOT)
    assert sum(map(len, graph.values())) > 300, "the imports were not read"
    assert cycles(graph) == []


@pytest.mark.parametrize(
    "back",
    [
        "import edbatch.graph.a",
        "from edbatch.graph import a",
        "from edbatch.graph.a import x",
        "def f():\n    from edbatch.graph.a import x",
        "if typing.TYPE_CHECKING:\n    import edbatch.graph.a",
    ],
)
def test_a_cycle_is_named(tmp_path: Path, back: str) -> None:
    write(tmp_path, "edbatch/graph/__init__.py", "from edbatch.graph.a import x")
    write(tmp_path, "edbatch/graph/a.py", "from edbatch.graph.b import y")
    write(tmp_path, "edbatch/graph/b.py", "import edbatch.graph.c")
    write(tmp_path, "edbatch/graph/c.py", back)
    write(tmp_path, "edbatch/graph/d.py", "import edbatch.graph.a")
    names = tuple(f"edbatch.graph.{each}" for each in "abc")
    assert cycles(import_graph(tmp_path)) == [names]


def test_a_chain_is_no_cycle(tmp_path: Path) -> None:
    write(tmp_path, "edbatch/graph/a.py", "from edbatch.graph import b, c")
    write(tmp_path, "edbatch/graph/b.py", "import edbatch.graph.c")
    write(tmp_path, "edbatch/graph/c.py", "import numpy")
    assert cycles(import_graph(tmp_path)) == []
