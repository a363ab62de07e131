"""The decorator `cell`, with its overloads for type checkers."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, overload

from edbatch.graph.cell import Cell, P, R

# Functions that take a random key, which edbatch fills in. No type can express the type
# of a function without one of its arguments, so calls of these cells are not checked.
# (If the result type were kept, mypy 2.4 would also treat later cells as having keys.)


class _Key0(Protocol):
    def __call__(self, *, rng: Any) -> Any: ...


class _Key1(Protocol):
    def __call__(self, a: Any, /, *, rng: Any) -> Any: ...


class _Key2(Protocol):
    def __call__(self, a: Any, b: Any, /, *, rng: Any) -> Any: ...


class _Key3(Protocol):
    def __call__(self, a: Any, b: Any, c: Any, /, *, rng: Any) -> Any: ...


class _Key4(Protocol):
    def __call__(self, a: Any, b: Any, c: Any, d: Any, /, *, rng: Any) -> Any: ...


class _Key5(Protocol):
    def __call__(
        self, a: Any, b: Any, c: Any, d: Any, e: Any, /, *, rng: Any
    ) -> Any: ...


class _Key6(Protocol):
    def __call__(
        self, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, /, *, rng: Any
    ) -> Any: ...


_TakesKey = _Key0 | _Key1 | _Key2 | _Key3 | _Key4 | _Key5 | _Key6


class _MakesCell(Protocol):
    """Decorator for a function that is called with the arguments it declares."""

    @overload
    def __call__(self, function: _TakesKey, /) -> Cell[..., Any]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Cell[P, R]: ...


class _MakesPaddedCell(Protocol):
    """Decorator for a function with padded lists, whose masks edbatch fills in."""

    def __call__(self, function: Callable[..., R], /) -> Cell[..., R]: ...


@overload
def cell(
    function: Callable[..., R],
    /,
    *,
    padded: Sequence[str],
    name: str | None = ...,
    static: Sequence[str] = ...,
    lengths: Sequence[int] = ...,
) -> Cell[..., R]: ...
@overload
def cell(
    function: _TakesKey,
    /,
    *,
    name: str | None = ...,
    static: Sequence[str] = ...,
) -> Cell[..., Any]: ...
@overload
def cell(
    function: Callable[P, R],
    /,
    *,
    name: str | None = ...,
    static: Sequence[str] = ...,
) -> Cell[P, R]: ...
@overload
def cell(
    *,
    padded: Sequence[str],
    name: str | None = ...,
    static: Sequence[str] = ...,
    lengths: Sequence[int] = ...,
) -> _MakesPaddedCell: ...
@overload
def cell(
    *,
    name: str | None = ...,
    static: Sequence[str] = ...,
) -> _MakesCell: ...
def cell(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Marks a JAX function of one instance as a cell.

    Args:
        function: Arrays in, a pytree of arrays out; no batch axis. Arguments may be
            pytrees; parts of the parameters may be passed in any position. An argument
            `rng`, which must be the last, receives a separate random key in each call
            (see `cell_keys`); if it has a default, the cell may run without keys. The
            function may call other cells, which are plain functions there: all of them
            together are one node.
        **options: ``name``: the name in messages and policy files, the function's own
            by default. ``padded``: names of list arguments that arrive stacked,
            ``[K, ...]``, with a boolean ``mask`` ``[K]``, so that nodes of different
            arity share a batch; with several padded arguments each has its own
            ``<name>_mask``. ``lengths``: the values that K may take, powers of two up
            to 64 by default; longer lists get multiples of the last. ``static``:
            names of arguments that are compile-time constants, part of the type.

    Returns:
        The cell; calling it with arrays runs the function.

    Raises:
        CellError: An option names an argument that the function does not have, or `rng`
            is not the last argument. When the cell is called: a padded list is empty.

    Example:
        >>> import jax.numpy as jnp
        >>> @cell
        ... def scale(params, x):
        ...     return params["gain"] * x
        >>> scale({"gain": jnp.float32(2.0)}, jnp.ones(2, jnp.float32)).tolist()
        [2.0, 2.0]
        >>> @cell(padded=("children",))
        ... def total(children, mask):
        ...     return jnp.where(mask[:, None], children, 0).sum(0)
        >>> total([jnp.ones(2), jnp.ones(2), jnp.ones(2)]).tolist()
        [3.0, 3.0]
    """
    if function is None:
        return lambda inner: Cell(inner, **options)
    return Cell(function, **options)
