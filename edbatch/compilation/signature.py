"""Signatures of calls: everything that a program is specialized to.

Two calls share a program if they agree in argument structure, shapes, dtypes, weak
types, devices of committed arrays, static arguments and JAX settings. `jax.jit` uses
the same criteria, and programs always run through it, so a difference that is missed
here costs a compilation but never gives a wrong result.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import jax
import numpy as np

from edbatch.compilation.jax_settings import SETTING_NAMES, settings
from edbatch.errors import ArgumentError, shown

_AVAL, _COMMITTED = attrgetter("aval"), attrgetter("committed")
_SHOWN = 3  # differences named in a sentence


class Key(NamedTuple):
    """A signature as a hashable key."""

    treedef: Any
    leaves: tuple[Any, ...]
    static: Any
    settings: tuple[Any, ...]


@dataclass(frozen=True)
class StaticArguments:
    """Static arguments of a function.

    Attributes:
        numbers: Positions of the static positional arguments.
        names: Names of the static keyword arguments.
    """

    numbers: tuple[int, ...] = ()
    names: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        numbers: int | Sequence[int] | None,
        names: str | Iterable[str] | None,
    ) -> "StaticArguments":
        """Infers numbers from names, or vice versa, if one is None, like `jax.jit`."""
        own_numbers = _as_tuple(numbers, int)
        own_names = _as_tuple(names, str)
        parameters = _positional(function)
        if names is None and numbers is not None:
            own_names = tuple(
                parameters[k]
                for k in own_numbers
                if -len(parameters) <= k < len(parameters)
            )
        elif numbers is None and names is not None:
            own_numbers = tuple(
                k for k, name in enumerate(parameters) if name in own_names
            )
        return cls(own_numbers, own_names)

    def split(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
        """Splits a call into dynamic positional, dynamic keyword, static arguments."""
        if not self.numbers and not self.names:
            return args, kwargs, ()
        numbers = {k % len(args) if k < 0 and args else k for k in self.numbers}
        return (
            tuple(each for k, each in enumerate(args) if k not in numbers),
            {name: each for name, each in kwargs.items() if name not in self.names},
            (
                tuple((k, each) for k, each in enumerate(args) if k in numbers),
                tuple(
                    (name, each)
                    for name, each in sorted(kwargs.items())
                    if name in self.names
                ),
            ),
        )

    def join(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], static: Any
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Undoes `split`."""
        if not static:
            return args, kwargs
        by_number, by_name = static
        joined = list(args)
        for k, each in by_number:
            joined.insert(k, each)
        return tuple(joined), kwargs | dict(by_name)


Avals = dict[Any, Any]  # avals of host arrays and numbers, by shape and dtype or type


def call_key(
    args: tuple[Any, ...], kwargs: dict[str, Any], static: Any, avals: Avals
) -> Key:
    """Returns the signature of a call.

    Args:
        args: Positional arguments, without static ones.
        kwargs: Keyword arguments, without static ones.
        static: Static arguments.
        avals: Cache of the avals in earlier signatures of the same function; new ones
            are added. Creating an aval takes as long as the rest of a call.

    Returns:
        The signature.
    """
    leaves, treedef = jax.tree.flatten((args, kwargs))
    values = settings()
    try:  # all are JAX arrays, as in a training loop
        keys = tuple(map(_AVAL, leaves))
        if any(map(_COMMITTED, leaves)):
            keys = tuple([_leaf_key(leaf, values[0], avals) for leaf in leaves])
    except AttributeError:
        keys = tuple([_leaf_key(leaf, values[0], avals) for leaf in leaves])
    return Key(treedef, keys, static, values)


def _leaf_key(leaf: Any, x64: bool, avals: Avals) -> Any:
    aval = getattr(leaf, "aval", None)
    if aval is None:
        return _host_aval(leaf, x64, avals)
    return (aval, leaf.sharding) if getattr(leaf, "committed", False) else aval


def abstract_arguments(key: Key) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns abstract arguments, for lowering a function for a signature.

    Args:
        key: The signature.

    Returns:
        Positional and keyword arguments, without static ones.
    """
    return jax.tree.unflatten(key.treedef, map(_struct, key.leaves))


def describe(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    static: StaticArguments,
) -> dict[str, str]:
    """Describes the signature of a call as text.

    Args:
        function: The function that is called.
        args: All positional arguments.
        kwargs: All keyword arguments.
        static: Which of them are static.

    Returns:
        Maps places such as ``"plan.stream"`` to descriptions such as ``"int32[512]"``,
        for each array, static argument, static size of a plan and JAX setting.
    """
    found = dict(zip(SETTING_NAMES, map(repr, settings()), strict=True))
    for name, argument, is_static in _named(function, args, kwargs, static):
        if is_static:
            found[name] = shown(argument)
            continue
        plans = jax.tree_util.tree_flatten_with_path(argument, is_leaf=_has_sizes)[0]
        for path, part in plans:
            where = f"{name}{jax.tree_util.keystr(path)}"
            if _has_sizes(part):
                for what, size in part.static_sizes().items():
                    found[f"{what} of {where}"] = str(size)
            for below, leaf in jax.tree_util.tree_flatten_with_path(part)[0]:
                found[f"{where}{jax.tree_util.keystr(below)}"] = _leaf_text(leaf)
    return found


def check_arguments(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    static: StaticArguments,
    key: Key,
) -> None:
    """Checks that the dynamic arguments of a call are pytrees of arrays and numbers.

    Args:
        function: The function that is called.
        args: All positional arguments.
        kwargs: All keyword arguments.
        static: Which of them are static.
        key: The signature of the call.

    Raises:
        ArgumentError: A leaf is neither an array nor a number, or an argument contains
            an nnx optimizer or metric, which the function would change in place; the
            message says where, and how to fix it.
    """
    _refuse_changed_in_place(function, args, kwargs, static)
    if not any(isinstance(each, type) for each in key.leaves):
        return
    for name, argument, is_static in _named(function, args, kwargs, static):
        parts = [] if is_static else jax.tree_util.tree_leaves_with_path(argument)
        for path, leaf in parts:
            if not isinstance(_leaf_key(leaf, key.settings[0], {}), type):
                continue
            raise ArgumentError(
                f"{name_of(function)} was called with {shown(leaf)} at"
                f" {name}{jax.tree_util.keystr(path)}, which is neither an array nor a"
                " number; name an argument that is a setting in static_argnames=, and"
                " of an object that holds settings or functions pass the arrays alone"
                " (of an Equinox module: eqx.filter(module, eqx.is_array))"
            )


def check_hashable(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    static: StaticArguments,
) -> None:
    """Checks that the static arguments of a call are hashable.

    Args:
        function: The function that is called.
        args: All positional arguments.
        kwargs: All keyword arguments.
        static: Which of them are static.

    Raises:
        ArgumentError: One is not hashable; the message names it.
    """
    for name, argument, is_static in _named(function, args, kwargs, static):
        try:
            _ = hash(argument) if is_static else 0
        except TypeError:
            raise ArgumentError(
                f"{name_of(function)} was called with {shown(argument)} as the static"
                f" argument {name}, but programs are looked up by static arguments and"
                " this one is not hashable; pass a tuple in place of a list, or an"
                " instance of a frozen dataclass in place of a dict"
            ) from None


def _refuse_changed_in_place(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    static: StaticArguments,
) -> None:
    """Raises `ArgumentError` for nnx optimizers and metrics: they change in place.

    Flax's `nnx.jit` writes such changes back. For JAX they are ordinary pytrees: a
    traced function changes a copy.
    """
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return
    changed = nnx.Optimizer, nnx.Metric

    def is_changed(each: object) -> bool:
        return isinstance(each, changed)

    for name, argument, is_static in _named(function, args, kwargs, static):
        if is_static:
            continue
        for each in filter(is_changed, jax.tree.leaves(argument, is_leaf=is_changed)):
            raise ArgumentError(
                f"{name_of(function)} was called with an nnx.{type(each).__name__} at"
                f" {name}, which it would change in place, but a compiled function gets"
                " a copy; use nnx.jit, or pass nnx.state(module, nnx.Param) as"
                " parameters and update them by an optimizer of Optax"
            )


def name_of(function: object) -> str:
    """Returns the name of a function for reports, or of its type if it has none.

    Args:
        function: Any callable.

    Returns:
        For example ``"step"``.
    """
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", type(function).__name__))


def difference(new: dict[str, str], known: Sequence[dict[str, str]]) -> str:
    """Describes how a signature differs from the most similar earlier one.

    Args:
        new: The signature, as returned by `describe`.
        known: Earlier signatures of the same function, in the same form.

    Returns:
        A clause that completes "compiled because".
    """
    if not known:
        return "it is the first call"
    nearest = min((_changes(new, each) for each in known), key=len)
    if not nearest:
        return (
            "a plan, a device, a static argument, or how an argument is passed, has"
            " changed"
        )
    shown_first = "; ".join(nearest[:_SHOWN])
    more = len(nearest) - _SHOWN
    return f"{shown_first}; and {more} more" if more > 0 else shown_first


def _changes(new: dict[str, str], old: dict[str, str]) -> list[str]:
    changed = [
        f"{where} changed from {old[where]} to {text}"
        for where, text in new.items()
        if where in old and old[where] != text
    ]
    changed += [f"{where} is new" for where in new if where not in old]
    changed += [f"{where} was removed" for where in old if where not in new]
    return changed


def _named(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    static: StaticArguments,
) -> list[tuple[str, Any, bool]]:
    """Lists the arguments of a call with their names, and whether they are static."""
    names = _positional(function)
    named = [
        (names[k] if k < len(names) else f"args[{k}]", each)
        for k, each in enumerate(args)
    ]
    fixed = {named[k][0] for k in static.numbers if k < len(named)} | {*static.names}
    return [(name, each, name in fixed) for name, each in [*named, *kwargs.items()]]


def _has_sizes(value: object) -> bool:
    return hasattr(type(value), "static_sizes")


def _leaf_text(leaf: Any) -> str:
    try:
        aval = jax.typeof(leaf)
        text = str(aval.str_short(short_dtypes=False))
    except (TypeError, AttributeError):
        return repr(leaf)
    if getattr(leaf, "weak_type", False) or isinstance(leaf, bool | int | float):
        text += " (weak)"
    if getattr(leaf, "committed", False):
        text += f" on {_place(leaf.sharding)}"
    return text


def _place(sharding: Any) -> str:
    """Short text for a sharding; JAX's own repr lists every device of a mesh."""
    devices = sharding.device_set
    if len(devices) == 1:
        [device] = devices
        return f"{device.platform}:{device.id}"
    spec = getattr(sharding, "spec", None)
    return f"{len(devices)} devices" + (f" as {spec}" if spec is not None else "")


def _struct(key: Any) -> Any:
    aval, sharding = key if isinstance(key, tuple) else (key, None)
    return jax.ShapeDtypeStruct(
        aval.shape, aval.dtype, weak_type=aval.weak_type, sharding=sharding
    )


def _host_aval(leaf: Any, x64: bool, avals: Avals) -> Any:
    """Returns the aval of a leaf that is not a JAX array; its type if it has none."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return _struct_key(leaf)
    is_array = isinstance(leaf, np.ndarray | np.generic)
    kind = (leaf.shape, leaf.dtype, x64) if is_array else (type(leaf), x64)
    found = avals.get(kind)
    if found is None:
        made = _numpy_aval(leaf) if is_array else _scalar_aval(type(leaf))
        found = avals.setdefault(kind, made)
    return found


def _numpy_aval(leaf: Any) -> Any:
    return _typeof(np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape))


def _scalar_aval(kind: type) -> Any:
    known: dict[type, Any] = {bool: False, int: 0, float: 0.0, complex: 0j}
    return _typeof(known[kind]) if kind in known else kind


def _struct_key(struct: jax.ShapeDtypeStruct) -> Any:
    aval = _typeof(struct)
    return aval if struct.sharding is None else (aval, struct.sharding)


def _typeof(value: Any) -> Any:
    try:
        return jax.typeof(value)
    except TypeError:
        return type(value)


def _as_tuple(value: Any, kind: type) -> tuple[Any, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, kind) else tuple(value)


def _positional(function: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [each.name for each in parameters if each.kind in kinds]
