"""Functions of a program that are lowered once for all processes.

The first process traces and lowers a function of flat arrays by `jax.export`. Another
process with the same key reads the StableHLO, which JAX inlines into the module of the
caller. The first process also inlines the StableHLO that it has just written, so both
lower the same module, and the other process finds the compiled program in JAX's cache.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
from jax import export

from edbatch.cell.jaxpr import stored_primitive
from edbatch.executor.program import ProgramShape
from edbatch.stored_programs.folder import FOLDER
from edbatch.stored_programs.program_key import program_key
from edbatch.target import target_of

Flat = Callable[..., Sequence[Any]]  # maps arrays to arrays, without pytrees


class NotStoredError(Exception):
    """A program is not in the folder, under `only_stored`."""


class _Mode(threading.local):
    only_stored = False


_mode = _Mode()
_call = stored_primitive()


@contextmanager
def only_stored() -> Iterator[None]:
    """Raises `NotStoredError` where a program would be traced, in this thread."""
    before = _mode.only_stored
    _mode.only_stored = True
    try:
        yield
    finally:
        _mode.only_stored = before


class StoredProgram:
    """A function and its StableHLO.

    Args:
        function: The function.
        exported: The result of `jax.export` for it.

    Attributes:
        traced: The function, for tracing.
        kept: Calls the StableHLO.
        platform: The platform for which it was lowered.
        results: Shapes and dtypes of its results.
    """

    def __init__(self, function: Flat, exported: export.Exported) -> None:
        self.traced = function
        self.kept: Callable[..., Any] = exported.call
        [self.platform] = exported.platforms
        self.results = [
            jax.ShapeDtypeStruct(each.shape, each.dtype) for each in exported.out_avals
        ]


def call_stored(
    what: str,
    program: ProgramShape,
    static: Any,
    function: Flat,
    arrays: Sequence[Any],
    *,
    differentiates: bool,
) -> tuple[Sequence[Any], str] | None:
    """Calls a function of a program through its stored StableHLO, if it can be stored.

    Args:
        what: The function's name.
        program: The program.
        static: Everything else that the function depends on, besides the arrays' types.
        function: Maps arrays to a sequence of arrays.
        arrays: Its arguments, traced.
        differentiates: Whether it belongs to a backward pass.

    Returns:
        The results, and the key of the program; None if it cannot be stored.

    Raises:
        NotStoredError: The program is not in the folder, under `only_stored`.
    """
    key = _key(what, program, static, arrays, differentiates)
    stored = None if key is None else _find(key, what, program, function, arrays)
    if key is not None and stored is not None:
        return _call(stored, *arrays), key
    if _mode.only_stored:
        raise NotStoredError
    return None


def _key(
    what: str,
    program: ProgramShape,
    static: Any,
    arrays: Sequence[Any],
    differentiates: bool,
) -> str | None:
    """Returns the key of a function; None if programs are not stored."""
    backend = jax.default_backend()
    if (
        FOLDER.path is None
        or program.options.target.kind != target_of(backend).kind
        or jax.process_count() > 1
        or not jax.sharding.get_abstract_mesh().empty
        or not all(isinstance(each, jax.core.Tracer) for each in arrays)
    ):
        return None
    types = [(each.shape, str(each.dtype), each.weak_type) for each in arrays]
    return program_key(what, program, (static, types), differentiates=differentiates)


def _find(
    key: str,
    what: str,
    program: ProgramShape,
    function: Flat,
    arrays: Sequence[Any],
) -> StoredProgram | None:
    """Returns a program from this process or the folder; makes it if necessary."""
    known = program.types.derived(("stored programs",), dict[str, Any])
    if key in known:
        return known[key]
    content = FOLDER.read(key)
    exported = None if content is None else _read(key, content)
    if exported is None:
        if _mode.only_stored:
            raise NotStoredError
        exported = _make(key, what, function, arrays)
    found = None if exported is None else StoredProgram(function, exported)
    return known.setdefault(key, found)


def _read(key: str, content: bytes) -> export.Exported | None:
    try:
        return export.deserialize(bytearray(content))
    except Exception:  # any error for a file of another version
        FOLDER.remove(key)
        return None


def _make(
    key: str, what: str, function: Flat, arrays: Sequence[Any]
) -> export.Exported | None:
    """Lowers and stores a function; None if `jax.export` does not support it."""

    def flat(*own: Any) -> Sequence[Any]:
        return function(*own)

    flat.__name__ = flat.__qualname__ = what
    jitted = jax.jit(flat)
    specs = [
        jax.ShapeDtypeStruct(each.shape, each.dtype, weak_type=each.weak_type)
        for each in arrays
    ]
    jitted.trace(*specs)  # raises the errors of cells
    try:
        content = bytes(export.export(jitted)(*specs).serialize())
        exported = export.deserialize(bytearray(content))
    except Exception:  # many classes: effects, operations without a stable form
        return None
    if any(each.weak_type for each in exported.out_avals):
        return None
    FOLDER.write(key, content)
    return exported
