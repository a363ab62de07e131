"""A stage imports only earlier stages; `__init__.py` files hold no logic.

Both checks read the sources with `ast`, so an import inside a function or under
`TYPE_CHECKING` counts like any other.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT_ROOT = Path(__file__).resolve().parents[1]

# Folder of each package's sources in the repository.
FOLDERS = {
    "edbatch": "edbatch",
    "edbatch.envs": "envs",
    "edbatch.policies": "policies",
    "edbatch.memory_planner": "memory_planner",
}
# In the order of the data flow.
STAGES = (
    "graph",
    "schedule",
    "envs",
    "policies",
    "memory_planner",
    "cell",
    "stream",
    "executor",
    "stored_programs",
    "gradient",
    "plan",
    "compilation",
    "batched_function",
    "options",
    "plan_state",
    "model_state",
    "state_registry",
    "recording",
    "planning",
    "explain",
    "loader",
    "host_side",
    "sharding",
    "waves",
)
FRONT_DOOR = "the front door"  # the modules directly in edbatch/
INIT = "edbatch/__init__.py"

BASE = (
    "errors",
    "limits",
    "arguments",
    "compiler",
    "ctrl_c",
    "target",
    "kernel",
    "sorting",
    "without_lock",
)  # modules that import only errors, arguments and kernel of edbatch

MAY_IMPORT = {
    "errors": {"errors"},
    "limits": {"errors", "limits"},
    "arguments": {"errors", "arguments"},
    "target": {"errors", "target"},
    "compiler": {"errors", "arguments", "compiler"},
    "ctrl_c": {"ctrl_c"},
    "kernel": {"kernel"},
    "sorting": {"kernel", "sorting"},
    "without_lock": {"without_lock"},
    **{stage: {*BASE, *STAGES[: i + 1]} for i, stage in enumerate(STAGES)},
    FRONT_DOOR: {*BASE, *STAGES, FRONT_DOOR},
    "serving": {*BASE, *STAGES, FRONT_DOOR, "serving"},
    "http": {*BASE, *STAGES, FRONT_DOOR, "serving", "http"},
    "data": {*BASE, "data"},
    "models": {"errors", FRONT_DOOR, "data", "models"},
    "flax": {*BASE, *STAGES[: STAGES.index("cell") + 1], "flax"},
    "grain": {*BASE, *STAGES, "grain"},
    INIT: {
        "errors",
        "compiler",
        "ctrl_c",
        *STAGES,
        FRONT_DOOR,
        "serving",
        "data",
        "models",
    },
    "benchmark": {
        *BASE,
        *STAGES,
        FRONT_DOOR,
        "data",
        "models",
        "benchmark",
    },
    "plot": {
        *("errors", "arguments", "graph", "schedule", "envs", "policies", "explain"),
        "plot",
    },
    "cli": {
        *(*BASE, *STAGES, FRONT_DOOR),
        *("serving", "http", "data", "models", "benchmark", "plot", "cli"),
    },
}
LAYERS = tuple(layer for layer in MAY_IMPORT if layer not in (FRONT_DOOR, INIT))


def module_files(root: Path) -> Iterator[tuple[str, Path]]:
    """Yields each module's import name and file."""
    for package, folder in FOLDERS.items():
        for file in sorted((root / folder).rglob("*.py")):
            below = file.relative_to(root / folder).with_suffix("").parts
            yield ".".join((package, *below)).removesuffix(".__init__"), file


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields the line and the name of each import; relative names begin with a dot."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            if base == "edbatch":  # `from edbatch import graph` imports the stage
                yield from ((node.lineno, f"edbatch.{a.name}") for a in node.names)
            else:
                yield node.lineno, base


def layer_of(name: str) -> str:
    first = name.removeprefix("edbatch").lstrip(".").partition(".")[0]
    if first == "__main__":
        return "cli"
    return first if first in LAYERS else FRONT_DOOR


def name_violation(name: str) -> str | None:
    """The reason why no file may import by this name, or None."""
    if name.startswith("."):
        return "relative import; write the absolute name, edbatch.…"
    top = name.partition(".")[0]
    if top in FOLDERS.values() and top != "edbatch":
        return f"imports {name}; its name is edbatch.{name}"
    return None


def direction_violation(importer: str, imported: str) -> str | None:
    if imported.partition(".")[0] != "edbatch":
        return None
    source = INIT if importer == "edbatch" else layer_of(importer)
    if layer_of(imported) in MAY_IMPORT[source]:
        return None
    allowed = ", ".join(sorted(MAY_IMPORT[source]))
    return f"{importer} imports {imported}; {source} may import only: {allowed}"


def import_violations(root: Path) -> list[str]:
    found = []
    for module, file in module_files(root):
        for line, name in imports(ast.parse(file.read_text())):
            if wrong := name_violation(name) or direction_violation(module, name):
                found.append(f"{file.relative_to(root)}:{line}: {wrong}")
    others = [*root.glob("tests/**/*.py"), *root.glob("experiments/**/*.py")]
    for file in sorted(others):
        for line, name in imports(ast.parse(file.read_text())):
            if wrong := name_violation(name):
                found.append(f"{file.relative_to(root)}:{line}: {wrong}")
    return found


def is_declaration(statement: ast.stmt) -> bool:
    """Whether a statement is an import, a docstring or `__all__ = [names]`.

    Imports may be under `if TYPE_CHECKING`, for names that load when they are used.
    """
    match statement:
        case ast.If(test=ast.Name("TYPE_CHECKING"), orelse=[]):
            return all(isinstance(each, ast.ImportFrom) for each in statement.body)
        case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant(str())):
            return True
        case ast.Assign(
            targets=[ast.Name("__all__")],
            value=ast.List(elts=names) | ast.Tuple(elts=names),
        ):
            return all(isinstance(name, ast.Constant) for name in names)
    return False


def logic_in_init_files(root: Path) -> list[str]:
    return [
        f"{file.relative_to(root)}:{statement.lineno}: an __init__.py holds only a "
        "docstring, imports and __all__"
        for _, file in module_files(root)
        if file.name == "__init__.py"
        for statement in ast.parse(file.read_text()).body
        if not is_declaration(statement)
    ]


def write(root: Path, file: str, source: str) -> None:
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(source)


def test_every_folder_was_read() -> None:
    read = {layer_of(module) for module, _ in module_files(PROJECT_ROOT)}
    assert read == {*LAYERS, FRONT_DOOR}


def test_stages_import_only_earlier_stages() -> None:
    violations = import_violations(PROJECT_ROOT)
    assert not violations, "\n".join(violations)


def test_init_files_hold_no_logic() -> None:
    violations = logic_in_init_files(PROJECT_ROOT)
    assert not violations, "\n".join(violations)


@pytest.mark.parametrize(
    ("file", "source", "violation"),
    [
        ("edbatch/graph/a.py", "import edbatch.schedule", "imports edbatch.sch"),
        ("edbatch/graph/a.py", "import edbatch", "graph.a imports edbatch;"),
        ("edbatch/graph/a.py", "from edbatch import batch", "imports edbatch.batch"),
        ("edbatch/schedule/a.py", "from edbatch import policies", "edbatch.policies"),
        ("envs/a.py", "def f():\n    import edbatch.policies.b", "envs/a.py:2: "),
        ("policies/b/a.py", "from edbatch.plan import x", "policies.b.a imports"),
        ("memory_planner/a.py", "import edbatch.plan", "planner.a imports"),
        ("edbatch/executor/a.py", "import edbatch.batched", "edbatch.batched"),
        ("edbatch/sharding/a.py", "import edbatch.batched", "edbatch.batched"),
        ("edbatch/plan/a.py", "import edbatch.planning", "edbatch.planning"),
        ("edbatch/executor/a.py", "import edbatch.sharding", "edbatch.sharding"),
        ("edbatch/errors.py", "import edbatch.graph", "errors may import only"),
        ("edbatch/data/a.py", "import edbatch.graph", "data may import only"),
        ("edbatch/models/a.py", "import edbatch.cli", "models may import only"),
        ("edbatch/loader/a.py", "import edbatch.verify", "edbatch.verify"),
        ("edbatch/loader/a.py", "import edbatch.grain", "edbatch.grain"),
        ("edbatch/plot/a.py", "import edbatch.plan", "plot may import only"),
        ("policies/a.py", "import edbatch.plot", "policies may import only"),
        ("edbatch/verify.py", "import edbatch.models", "the front door may import"),
        ("edbatch/__init__.py", "import edbatch.cli.main", "edbatch imports edbatch.c"),
        ("edbatch/graph/a.py", "from . import b", "relative import"),
        ("edbatch/graph/a.py", "from ..errors import b", "relative import"),
        ("edbatch/cli/a.py", "import policies", "its name is edbatch.policies"),
        ("tests/a.py", "from envs.b import c", "its name is edbatch.envs.b"),
        ("experiments/a.py", "import memory_planner", "edbatch.memory_planner"),
    ],
)
def test_a_wrong_import_is_named(
    tmp_path: Path, file: str, source: str, violation: str
) -> None:
    write(tmp_path, file, source)
    (found,) = import_violations(tmp_path)
    assert found.startswith(f"{file}:")
    assert violation in found


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("edbatch/schedule/a.py", "from edbatch import errors, graph"),
        ("edbatch/executor/a.py", "import edbatch.memory_planner.pq_tree, numpy"),
        ("edbatch/batched.py", "from edbatch.plan import run"),
        ("edbatch/models/a.py", "import edbatch as eb, edbatch.data"),
        ("edbatch/__init__.py", "from edbatch.front_door import batch"),
        ("edbatch/__main__.py", "from edbatch.cli.main import main"),
        ("edbatch/training.py", "from edbatch.loader import Minibatch"),
        ("tests/a.py", "import edbatch.cli"),
    ],
)
def test_a_right_import_passes(tmp_path: Path, file: str, source: str) -> None:
    write(tmp_path, file, source)
    assert import_violations(tmp_path) == []


@pytest.mark.parametrize(
    "source",
    [
        *("x = 1", "__all__ = [f()]", "__all__ += ['a']", "if x:\n    import a", "f()"),
        *("if TYPE_CHECKING:\n    f()", "if TYPE_CHECKING:\n    x = 1"),
    ],
)
def test_logic_in_an_init_file_is_named(tmp_path: Path, source: str) -> None:
    write(tmp_path, "envs/__init__.py", f'"""Doc."""\n\nimport a\n\n{source}\n')
    (found,) = logic_in_init_files(tmp_path)
    assert found.startswith("envs/__init__.py:5: ")
