"""Checks the structure of parameters, and names differences between structures."""

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

import jax

from edbatch.errors import PlanError, shown
from edbatch.graph.constants import number_marks
from edbatch.graph.parameters import ParameterPath

_MADE_AGAIN = (
    "make the plan again with these parameters: by .plan(..., params=params), or after"
    " .bind(params)"
)
# Containers without static data: a path leads to each of their parts.
_CONTAINERS = (Mapping, list, tuple, type(None))


def abstract(tree: Any) -> Any:
    """Replaces every array in a pytree by its shape and dtype.

    Args:
        tree: Any pytree of arrays, Python numbers or ``jax.ShapeDtypeStruct``.

    Returns:
        The same structure with ``jax.ShapeDtypeStruct`` leaves.

    Raises:
        PlanError: A leaf is neither an array nor a number; or it is a JAX array with a
            dtype that exists only under ``jax_enable_x64``, which is off; or the
            parameters are those of a model that is being recorded.

    Example:
        >>> import numpy as np
        >>> abstract({"w": np.zeros((2, 3), np.float32)})["w"].shape
        (2, 3)
    """
    if type(tree) is dict:  # jax.tree.map would sort the keys
        return {key: abstract(value) for key, value in tree.items()}
    return jax.tree.map(_abstract_leaf, tree, is_leaf=lambda node: type(node) is dict)


def _abstract_leaf(leaf: Any) -> Any:
    if isinstance(leaf, ParameterPath):
        raise PlanError(
            "a batched function runs minibatches, outside of models, but here a model"
            " calls one while it is recorded; call the function that was given to"
            " eb.batch"
        )
    if type(leaf) is dict:
        return abstract(leaf)
    dtype = getattr(leaf, "dtype", type(leaf))
    own = dtype
    try:
        # nnx modules store random keys along with their parameters.
        dtype = jax.dtypes.canonicalize_dtype(dtype, allow_extended_dtype=True)
    except TypeError:
        dtype = None
    # The dtypes of keys have no kind.
    if dtype is None or getattr(dtype, "kind", "V") in "OSUMm":
        if isinstance(leaf, Mapping):  # such as the result of np.load
            raise PlanError(
                "parameters are a pytree of arrays and numbers but a leaf of it is a"
                f" {type(leaf).__name__}, which JAX does not look into; pass"
                " dict(params)"
            )
        if is_dataclass(leaf) and not isinstance(leaf, type):
            raise PlanError(
                "parameters are a pytree of arrays and numbers but a leaf of it is of"
                f" the dataclass {type(leaf).__name__}, which JAX does not look into;"
                " decorate it with jax.tree_util.register_dataclass"
            )
        raise PlanError(
            "parameters are a pytree of arrays and numbers but a leaf of it is"
            f" {shown(leaf)}, of type {type(leaf).__name__}; usually a setting or a"
            " function among them; leave it out, or declare it static in its class; of"
            " an Equinox module pass eqx.filter(module, eqx.is_array)"
        )
    if isinstance(leaf, jax.Array) and own != dtype:
        raise PlanError(
            f"the parameters hold an array of {own}, made while jax_enable_x64 was on,"
            f" but it is off here, where JAX computes in {dtype}; convert it by"
            f" .astype(jnp.{dtype}), or run in `with jax.enable_x64(True):`"
        )
    return jax.ShapeDtypeStruct(getattr(leaf, "shape", ()), dtype)


def key_order(tree: Any) -> tuple[Any, ...]:
    """Lists the keys of all dicts of a pytree in their own order (JAX sorts them).

    Args:
        tree: Any pytree.

    Returns:
        A value that is equal for pytrees of equal structure and equal key order.

    Example:
        >>> key_order({"w": 1, "b": {"c": 2}})
        (('w', ()), ('b', (('c', ()),)))
    """
    if type(tree) is dict:
        return tuple((key, key_order(value)) for key, value in tree.items())
    parts = jax.tree.leaves(tree, is_leaf=lambda node: type(node) is dict)
    return tuple(key_order(each) for each in parts if type(each) is dict)


def difference(found: Any, known: Any) -> str:
    """Names the first difference between the structures of parameters.

    Args:
        found: A pytree of ``jax.ShapeDtypeStruct``; the message calls it "there".
        known: A pytree that differs from it; the message calls it "here".

    Returns:
        A clause for an error message.

    Example:
        >>> import numpy as np
        >>> difference(abstract({"w": np.int32(1)}), abstract({"w": np.float32(1)}))
        "params['w'] is int32[] there and float32[] here"
    """
    one, other = (
        {
            f"params{jax.tree_util.keystr(path)}": f"{leaf.dtype}{list(leaf.shape)}"
            for path, leaf in jax.tree_util.tree_flatten_with_path(each)[0]
        }
        for each in (found, known)
    )
    if odd := sorted(one.keys() ^ other.keys()):
        return f"they differ in {odd[0]}"
    for name, shape in one.items():
        if other[name] != shape:
            return f"{name} is {shape} there and {other[name]} here"
    if (static := static_difference(found, known)) is not None:
        return f"{static} there and here"
    return "a dict whose keys the model iterates over has another order of keys"


def static_difference(found: Any, known: Any) -> str | None:
    """Names a part of the parameters that differs in its static data.

    Static data is everything that a module depends on besides arrays: whether it is in
    training mode, its dropout rate, its number of heads. Python containers may have
    different types if their paths are the same.

    Args:
        found: A pytree.
        known: Another one, with leaves at the same paths.

    Returns:
        A clause for an error message; None if there is no such part.
    """
    structure: Any = jax.tree.structure
    waiting = [(structure(found), structure(known))]
    while waiting:
        one, other = waiting.pop()
        if one == other and number_marks(one) == number_marks(other):
            continue
        own, its = one.node_data(), other.node_data()
        parts = [one.children(), other.children()]
        if len(parts[0]) != len(parts[1]):  # empty parts have no path
            parts = [[each for each in some if each.num_leaves] for some in parts]
        if own is None or its is None or len(parts[0]) != len(parts[1]):
            return "one has a leaf where the other has a container"
        if not all(issubclass(each, _CONTAINERS) for each, _ in (own, its)):
            if own[0] is not its[0]:
                return (
                    f"one has {own[0].__name__} where the other has {its[0].__name__}"
                )
            if own[1] != its[1] or _own_marks(one) != _own_marks(other):
                return (
                    f"{own[0].__name__} differs in what is no array (its mode, after"
                    " .train() or .eval(), or a static attribute)"
                )
        waiting.extend(zip(*parts, strict=True))
    return None


def _own_marks(treedef: Any) -> tuple[str, ...]:
    """Returns the marks of a node itself, without those of its children."""
    children = treedef.children()
    return number_marks(treedef)[: -sum(map(len, map(number_marks, children))) or None]


def check_params(
    params: Any,
    spec: Any,
    what: str = "the plan was made",
    fix: str = _MADE_AGAIN,
) -> None:
    """Checks that parameters have the recorded structure.

    Args:
        params: Parameters.
        spec: The structure, with ``jax.ShapeDtypeStruct`` leaves.
        what: What was made for parameters of this structure, for messages.
        fix: What to do about parameters of another structure, for messages.

    Raises:
        PlanError: They differ; the message names the first difference.
    """
    own_spec = abstract(params)
    found = jax.tree_util.tree_flatten_with_path(own_spec)
    known = jax.tree_util.tree_flatten_with_path(spec)
    names = [jax.tree_util.keystr(path) for path, _ in found[0]]
    expected = [jax.tree_util.keystr(path) for path, _ in known[0]]
    if names != expected:
        odd = sorted(set(names) ^ set(expected)) or ["their order"]
        raise PlanError(
            f"{what} for parameters of another structure: they differ in"
            f" params{odd[0]}; {fix}"
        )
    for name, (_, own), (_, other) in zip(names, found[0], known[0], strict=True):
        if (own.shape, own.dtype) != (other.shape, other.dtype):
            raise PlanError(
                f"params{name} is {own.dtype}{list(own.shape)} but {what} for"
                f" {other.dtype}{list(other.shape)}; {fix}"
            )
    static = static_difference(own_spec, spec)
    if static is not None:
        raise PlanError(f"{what} for other parameters: {static}; {fix}")
