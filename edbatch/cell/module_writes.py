"""Refuses writes of cells to the Flax nnx modules that are passed to them.

A cell runs on a copy of a module, separately for each node and in any order. So its
writes to a variable, a random number stream or an attribute would be lost: a dropout
would drop the same elements at every node. A cell that merges a module from its state
has its own copy in any case, and returns what has to be kept.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from edbatch.cell.jaxpr import Atom, Body, Var, argument_of, trace
from edbatch.errors import CellError

_FLAX = "flax.nnx"
# Attributes that are ignored: those that eval() and train() set, and a list's length.
_UNSEEN = {"deterministic", "use_running_average", "_length"}


class _Part(NamedTuple):
    """A variable or an attribute: its class, its arrays, and its remaining value."""

    kind: type
    arrays: tuple[Any, ...] = ()
    rest: Any = None


_Parts = dict[str, _Part]  # by name, such as ``layers.0.kernel``


class WrittenParts(NamedTuple):
    """A function's writes to modules.

    Attributes:
        arrays: Name, class of the variable, and the arrays before and after. They may
            hold the same values, if they only passed through a jitted function.
        attributes: Name and class of attributes and variables that have another value,
            are new, or are gone.
    """

    arrays: list[tuple[str, type, Any, Any]]
    attributes: list[tuple[str, type]]


class WatchedModules:
    """The modules among a function's arguments, as they are before it runs.

    Args:
        arguments: The arguments, a pytree.
    """

    def __init__(self, arguments: Any) -> None:
        leaves = jax.tree.leaves(arguments, is_leaf=_is_module)
        self._modules = [each for each in leaves if _is_module(each)]
        self._before = [_parts_of(each) for each in self._modules]

    def written(self) -> WrittenParts:
        """Returns the writes to the modules since this object was made."""
        found = WrittenParts([], [])
        for module, before in zip(self._modules, self._before, strict=True):
            _compare(before, _parts_of(module, copies=False), found)
        return found


def refuse_writes(
    name: str,
    run: Callable[..., tuple[Any, WatchedModules]],
    arguments: Sequence[Any],
    written: WrittenParts,
) -> None:
    """Raises an error for a cell's writes to modules.

    Args:
        name: The cell's name.
        run: Runs the cell's function; returns its result, and the modules it received.
        arguments: Arguments for ``run``, with ``jax.ShapeDtypeStruct`` leaves.
        written: The function's writes when it was traced.

    Raises:
        CellError: The function wrote something, and did not only pass an array through
            a jitted function, as `nnx.remat` and `nnx.jit` do; or it drew random
            numbers that its result depends on. (The result of `nnx.RNN` does not: it
            draws a key, but initializes its state with zeros.)
    """
    for path, kind in effective_writes(run, arguments, written):
        if _is_random(kind):
            raise CellError(
                f"cell {name!r} draws random numbers from a module ({path}), which"
                " would be the same at every node; make a cell of the module,"
                " eb.flax.cell(module), and pass rng=jax.random.key(seed) where the"
                " minibatch runs"
            )
        raise _error(name, f"{path}, of class {kind.__name__}")
    for path, _ in written.attributes:
        raise _error(name, f"the attribute {path}")


def _error(name: str, what: str) -> CellError:
    return CellError(
        f"cell {name!r} writes to {what} of a module that it receives, but the nodes of"
        " a minibatch run in any order, each on the original module; return the values"
        " to keep, and pass them on as arguments"
    )


def effective_writes(
    run: Callable[..., tuple[Any, WatchedModules]],
    arguments: Sequence[Any],
    written: WrittenParts,
) -> list[tuple[str, type]]:
    """Drops arrays that only passed through, and draws that do not affect the result.

    Args:
        run: As for `refuse_writes`.
        arguments: As for `refuse_writes`.
        written: As for `refuse_writes`.

    Returns:
        Names and classes of the remaining variables.
    """
    if not written.arrays:
        return []
    paths: list[tuple[str, type]] = []

    def ends(*own: Any) -> list[Array]:
        result, modules = run(*own)
        again = modules.written().arrays
        paths.extend((path, kind) for path, kind, _, _ in again)
        pairs = [each for *_, before, after in again for each in (before, after)]
        return pairs + jax.tree.leaves(result)

    body, _ = trace(ends, *arguments)
    needed = _inputs_of(body, body.outputs[2 * len(paths) :])
    found = []
    for k, (path, kind) in enumerate(paths):
        place = argument_of(body, 2 * k)
        if place is not None:
            if argument_of(body, 2 * k + 1) == place:
                continue
            if _is_random(kind) and place not in needed:
                continue
        found.append((path, kind))
    return found


def _inputs_of(body: Body, outputs: Sequence[Atom]) -> set[int]:
    """Positions of the arguments on which some results depend."""
    needed = {each for each in outputs if isinstance(each, Var)}
    for eqn in reversed(body.equations):
        if not needed.isdisjoint(eqn.outvars):
            needed.update(each for each in eqn.invars if isinstance(each, Var))
    return {k for k, each in enumerate(body.inputs) if each in needed}


def _is_random(kind: type) -> bool:
    return any(base.__name__ == "RngState" for base in kind.__mro__)


def _compare(before: _Parts, after: _Parts, found: WrittenParts) -> None:
    for path, part in after.items():
        own = before.get(path)
        if own is None or len(own.arrays) != len(part.arrays):
            found.attributes.append((path, part.kind))
            continue
        for one, other in zip(own.arrays, part.arrays, strict=True):
            if one is not other:
                found.arrays.append((path, part.kind, one, other))
        if not _is_same(own.rest, part.rest):
            found.attributes.append((path, part.kind))
    gone = before.keys() - after.keys()
    found.attributes.extend((path, before[path].kind) for path in sorted(gone))


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values are equal, and containers have the same elements."""
    if one is other:
        return True
    structure: Any = jax.tree.structure(one)
    if structure != jax.tree.structure(other):
        return False
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(
        each is own or (type(each) is type(own) and np.array_equal(each, own))
        for each, own in pairs
    )


def _is_module(node: Any) -> bool:
    """Whether an object is a module, a list of modules, or random number streams."""
    return "Pytree" in _classes_of(node)


def _classes_of(node: Any) -> set[str]:
    """Names of the nnx classes from which an object's class is derived."""
    bases = type(node).__mro__
    return {each.__name__ for each in bases if each.__module__.startswith(_FLAX)}


def _parts_of(module: Any, *, copies: bool = True) -> _Parts:
    """Returns the variables and attributes of a module and of its submodules."""
    found: _Parts = {}
    seen: set[int] = set()

    def visit(node: Any, path: tuple[str, ...]) -> None:
        name = ".".join(path)
        classes = _classes_of(node)
        if not classes & {"Pytree", "Variable"}:
            leaves = jax.tree.leaves(node)
            if any(isinstance(each, (Array, jax.core.Tracer)) for each in leaves):
                found[name] = _Part(Array, tuple(leaves))
            else:
                found[name] = _Part(type(node), rest=_kept(node) if copies else node)
            return
        if id(node) in seen:
            return
        seen.add(id(node))
        if "Variable" in classes:
            found[name] = _Part(type(node), tuple(jax.tree.leaves(node)))
            return
        for key, value in vars(node).items():
            own = getattr(type(node), key, None)
            is_cached = isinstance(own, functools.cached_property)
            if not (is_cached or key in _UNSEEN or key.startswith("_pytree__")):
                visit(value, (*path, key))

    visit(module, ())
    return found


def _kept(value: Any) -> Any:
    """A shallow copy of a container, against which later writes are detected."""
    if isinstance(value, set):
        return value.copy()
    return jax.tree.map(lambda leaf: leaf, value)
