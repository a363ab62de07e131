"""Numba recompiles a cached function if any of its source files has changed."""

import ast
import importlib.util
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import CodeType, ModuleType

import pytest
from numba.core.dispatcher import Dispatcher

from edbatch.kernel import files_of_kernels, kernel

INNER = """from edbatch.kernel import kernel

STEP = 1

@kernel
def inner(x):
    return x + 1
"""
MIDDLE = """from edbatch.kernel import kernel
from inner import (
    STEP,
    inner,
)

@kernel
def middle(x):
    return inner(x) * 10 + STEP
"""
OUTER = """from edbatch.kernel import kernel
from middle import middle

@kernel(nogil=False)
def outer(x):
    return middle(x)

print(outer(1), len(outer.stats.cache_hits))
"""


def test_a_change_in_any_file_reaches_its_callers(tmp_path: Path) -> None:
    for name, text in (("inner", INNER), ("middle", MIDDLE), ("outer", OUTER)):
        (tmp_path / f"{name}.py").write_text(text)

    def outer() -> str:
        command = [sys.executable, "outer.py"]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    assert outer() == "21 0"
    assert outer() == "21 1"  # read from the cache of the previous process
    inner = INNER.replace("STEP = 1", "STEP = 2")
    (tmp_path / "inner.py").write_text(inner)
    assert outer() == "22 0"
    (tmp_path / "inner.py").write_text(inner.replace("x + 1", "x + 2"))
    assert outer() == "32 0"
    assert outer() == "32 1"


def modules_with_kernels() -> list[ModuleType]:
    found = {}
    for root in ("", ".policies", ".envs", ".memory_planner"):
        package = importlib.import_module(f"edbatch{root}")
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            spec = importlib.util.find_spec(info.name)
            assert spec is not None and spec.origin is not None
            if b"from edbatch.kernel import" in Path(spec.origin).read_bytes():
                found[info.name] = importlib.import_module(info.name)
    return [*found.values()]


def names_in(code: CodeType) -> set[str]:
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return {*code.co_names}.union(*map(names_in, inner))


def sources_of_imports(module: ModuleType) -> dict[str, str]:
    """The module that each imported name comes from."""
    tree = ast.parse(Path(str(module.__file__)).read_text())
    return {
        each.asname or each.name: str(node.module)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for each in node.names
    }


def test_kernels_use_nothing_of_files_that_are_not_compared() -> None:
    checked = 0
    for module in modules_with_kernels():
        compared = files_of_kernels(module.__name__)
        source = sources_of_imports(module)
        used = set()
        for each in vars(module).values():
            if isinstance(each, Dispatcher):
                used |= names_in(each.py_func.__code__)
                arguments = each.py_func.__annotations__.values()
                used |= {getattr(one, "__name__", "") for one in arguments}
        for name, value in vars(module).items():
            if not source.get(name, "").startswith("edbatch") or value is kernel:
                continue
            if name in used or isinstance(value, Dispatcher):
                assert source[name] in compared, (module.__name__, name)
                own = getattr(value, "__module__", source[name])
                assert own in compared, (module.__name__, name)
                checked += 1
    assert checked > 50


def test_its_own_name_is_that_of_the_function() -> None:
    from edbatch.memory_planner.runs import link_sequence

    assert isinstance(link_sequence, Dispatcher)
    assert link_sequence.__name__ == "link_sequence"
    assert link_sequence.__doc__.startswith("Makes a sequence")


def test_sources_that_cannot_be_read_are_left_to_numba(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_module: str) -> bytes:
        raise OSError

    monkeypatch.setattr("edbatch.kernel.digest_of_sources", refuse)

    def increment(x: int) -> int:
        return x + 1

    assert kernel(increment)(1) == 2
