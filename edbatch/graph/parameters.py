"""The stand-in for the parameters while a model is being recorded.

A model selects the parameters for a cell by writing ``params["encoder"][k].weight``.
The stand-in records that path. It knows the parameters' structure (shapes, no values),
so a wrong name fails while recording, loops over layers work, and static attributes of
modules (a number of layers, a flag) have their real values.
"""

import operator
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NoReturn

import jax

from edbatch.errors import (
    PickleError,
    PlanError,
    RecordingError,
    nearest,
    shown,
    user_line,
)
from edbatch.graph.stand_in import is_stand_in, stand_in

# One step from a container to a part of it: ("item", key) or ("attribute", name); or
# from a variable, such as a Flax Param, to its array.
Step = tuple[str, Any]
_CONTENT: Step = ("content", "value")


def _is_variable(value: Any) -> bool:
    """Whether a value is a pytree around one array and has the array's attributes."""
    return _is_array(value) and not jax.tree_util.all_leaves([value])


def _content(variable: Any) -> Any:
    """Returns the array of a variable, or the stand-in for the array."""
    if isinstance(variable, ParameterPath):
        return variable.value
    [array] = jax.tree.leaves(variable)
    return array


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


class _NoAttributeError(RecordingError, AttributeError):
    """A missing attribute; `hasattr` and the default of `getattr` handle it, too."""


@stand_in
class ParameterPath:
    """A part of the parameters, identified by its path.

    Attributes are looked up on the parameters' own structure; the same path always
    returns the same object, so paths can be compared by identity.

    Example:
        >>> import numpy as np
        >>> params = ParameterPath({"encoder": [{"w": np.ones(2)}]})
        >>> path_name(params["encoder"])
        'encoder'
    """

    __slots__ = ("_children", "_listed", "_spec", "_steps")

    def __init__(
        self,
        spec: Any,
        steps: tuple[Step, ...] = (),
        listed: set[tuple[Step, ...]] | None = None,
    ) -> None:
        self._spec = spec
        self._steps = steps
        self._children: dict[Step, Any] = {}
        # Paths of dicts whose key order the model saw; one set for all parts.
        self._listed = set() if listed is None else listed

    def _child(self, step: Step, spec: Any) -> Any:
        if spec is None:
            return None
        if not _is_array(spec) and jax.tree_util.all_leaves([spec]):
            if callable(spec):
                _reject_call(describe(self._steps), step[1])
            return spec  # a static attribute: no array, so not a parameter
        if isinstance(spec, (list, tuple)) and not any(
            _is_array(leaf) or callable(leaf) for leaf in jax.tree.leaves(spec)
        ):
            return jax.tree.map(lambda leaf: leaf, spec)  # such as a kernel size
        child = ParameterPath(spec, (*self._steps, step), self._listed)
        return self._children.setdefault(step, child)

    def __getattr__(self, name: str) -> Any:
        if name in ParameterPath.__slots__:  # the object is not initialized yet
            raise AttributeError(name)
        step = ("attribute", name)
        if step in self._children:
            return self._children[step]
        if _is_array(self._spec) and name in ("shape", "dtype", "ndim", "size"):
            return getattr(self._spec, name)
        if name == "value" and _is_variable(self._spec):
            return self._child(_CONTENT, _content(self._spec))
        if name.startswith("__") or _is_array(self._spec):
            raise AttributeError(
                f"{describe(self._steps)} has no attribute {name!r} while the model is"
                " recorded"
            )
        if isinstance(self._spec, Mapping):
            if name in ("keys", "values", "items"):
                return getattr({key: self[key] for key in self}, name)
            if name == "get":
                return self._get
        try:
            spec = getattr(self._spec, name)
        except AttributeError:
            is_dict = isinstance(self._spec, Mapping)
            known = map(str, self._spec) if is_dict else _public(self._spec)
            raise _NoAttributeError(_unknown(self._steps, name, known)) from None
        return self._child(step, spec)

    def _get(self, key: Any, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401, no `get` here

    def __getitem__(self, key: Any) -> Any:
        try:
            known = self._children.get(("item", key))
        except TypeError:  # the key has no hash
            known = None
        return self._item(key) if known is None else known

    def _item(self, key: Any) -> Any:
        """Finds a part by a key that was not used before, or not in this form."""
        if is_stand_in(key):
            key._reject(f"{describe(self._steps)} was indexed by it,")
        if isinstance(self._spec, (list, tuple)):
            count = len(self._spec)
            if isinstance(key, slice):
                some = [self[k] for k in range(count)[key]]
                return some if isinstance(self._spec, list) else tuple(some)
            if not isinstance(key, int):
                with suppress(TypeError):
                    key = operator.index(key)  # also for an array of one integer
            if isinstance(key, int) and -count <= key < 0:
                return self[key + count]  # so each part has one path
        if _is_array(self._spec):
            if key is Ellipsis:  # the whole array
                return self.value if _is_variable(self._spec) else self
            raise RecordingError(
                f"while recording, parameter {describe(self._steps)} was indexed with"
                f" [{shown(key)}] outside a cell; pass the parameter to a cell and"
                " index it there"
            )
        try:
            spec = self._spec[key]
        except (KeyError, IndexError, TypeError):
            known = (
                map(str, self._spec.keys())
                if isinstance(self._spec, Mapping)
                else map(str, range(len(self._spec)))
                if isinstance(self._spec, (list, tuple))
                else ()
            )
            raise RecordingError(_unknown(self._steps, str(key), known)) from None
        return self._child(("item", key), spec)

    def __reduce__(self) -> NoReturn:
        """Raises PickleError: a path belongs to the recordings of one model."""
        raise PickleError(
            f"{describe(self._steps)} has no value while the model is recorded, so it"
            f" cannot be pickled ({user_line()}); pickle the recording"
        )

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self._spec, Mapping):
            self._listed.add(self._steps)
            return iter(self._spec)
        if _is_array(self._spec):
            self._reject("iteration over a parameter")
        return iter([self[k] for k in range(len(self._spec))])

    def __len__(self) -> int:
        return len(self._spec)

    def __contains__(self, key: Any) -> bool:
        return key in self._spec

    def __repr__(self) -> str:
        return f"ParameterPath({describe(self._steps)})"

    def _reject(self, operation: str, *_: Any) -> NoReturn:
        raise RecordingError(
            f"{operation} outside a cell ({user_line()}): {describe(self._steps)} has"
            " no value while the model is recorded; move the computation into a"
            " function marked with @eb.cell"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises RecordingError: a module has no values while a model is recorded."""
        self._reject("a module was called")

    def __bool__(self) -> bool:
        if _is_array(self._spec):
            self._reject("a branch on a parameter")
        return bool(self._spec)

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._reject("conversion of a parameter to an array")

    def __eq__(self, other: object) -> bool:
        """Compares by identity, as each part has one path; rejects other values."""
        if isinstance(other, ParameterPath):
            return self is other
        self._reject("a comparison (==, !=, in)")

    __hash__ = object.__hash__


def _public(spec: Any) -> list[str]:
    return [each for each in dir(spec) if not each.startswith("_")]


def is_sequence(value: Any) -> bool:
    """Tells whether a value stands for a list or a tuple of parameters."""
    return isinstance(value, ParameterPath) and isinstance(value._spec, (list, tuple))


def listed_in_other_order(params: ParameterPath, spec: Any) -> str | None:
    """Names a dict whose keys a model has listed in another order.

    Args:
        params: The root stand-in that the model saw.
        spec: Parameters of equal structure.

    Returns:
        The dict, for example ``params['layers']``; None if there is none.
    """
    for steps in params._listed:
        own, other = (list(part_of(each, steps)) for each in (params._spec, spec))
        if own != other and {*own} == {*other}:
            return describe(steps)
    return None


def check_order(params: Any, seen: ParameterPath) -> None:
    """Checks that dict keys have the order in which a model has listed them.

    Args:
        params: Parameters of the recorded structure.
        seen: The root stand-in that the model saw.

    Raises:
        PlanError: The keys have another order, so the model would run its layers, for
            example, in another order.
    """
    name = None
    with suppress(AttributeError, LookupError, TypeError):  # reported by `check_params`
        name = listed_in_other_order(seen, params)
    if name is not None:
        raise PlanError(
            f"the model lists the keys of {name}, and these parameters have them in"
            " another order than those that the plan was made for; JAX sorts the keys"
            " of dicts in jit, grad and jax.tree.map, so make plans for sorted ones:"
            " params = jax.tree.map(lambda leaf: leaf, params) before eb.batch, .bind"
            " or .plan gets them"
        )


def put_in_order(params: ParameterPath, spec: Any) -> None:
    """Gives a stand-in the key order of other parameters, of equal structure."""
    params._spec = spec
    for step, child in params._children.items():
        put_in_order(child, part_of(spec, (step,)))


def _reject_call(where: str, name: str) -> NoReturn:
    raise RecordingError(
        f"while recording, {where} gives no access to its method {name!r}; pass the"
        " module to a function marked with @eb.cell and call the method there"
    )


def _unknown(steps: tuple[Step, ...], name: str, known: Any) -> str:
    return (
        f"the parameters at {describe(steps)} have no {shown(name)} ({user_line()});"
        f" {nearest(name, known)}"
    )


def describe(steps: tuple[Step, ...]) -> str:
    """Formats a path as a Python expression.

    Args:
        steps: Steps from the root of the parameters.

    Returns:
        For example ``params['encoder'][0].weight``.

    Example:
        >>> describe((("item", "encoder"), ("item", 0), ("attribute", "weight")))
        "params['encoder'][0].weight"
    """
    parts = [f"[{key!r}]" if kind == "item" else f".{key}" for kind, key in steps]
    return "params" + "".join(parts)


def path_name(path: ParameterPath) -> str:
    """Formats a path with dots, as in policy files.

    Args:
        path: A part of the parameters.

    Returns:
        For example ``encoder.0.weight``; empty for all of the parameters.

    Example:
        >>> import numpy as np
        >>> path_name(ParameterPath({"encoder": [{"w": np.ones(2)}]})["encoder"])
        'encoder'
    """
    return ".".join(str(key) for _, key in path._steps)


def resolve(params: Any, path: ParameterPath) -> Any:
    """Follows a recorded path in real (or traced) parameters.

    Args:
        params: Parameters of the structure that the stand-in was made for.
        path: A part of them.

    Returns:
        That part: an array or a pytree of arrays.

    Example:
        >>> resolve({"w": 3.0}, ParameterPath({"w": 1.0}))
        {'w': 3.0}
    """
    return part_of(params, path._steps)


def part_of(tree: Any, steps: tuple[Step, ...]) -> Any:
    """Follows steps from the root of parameters, or of their stand-in.

    Args:
        tree: Parameters, or the stand-in for them.
        steps: The steps.

    Returns:
        The part that they lead to.
    """
    for kind, key in steps:
        if kind == "item":
            tree = tree[key]
        else:
            tree = _content(tree) if kind == "content" else getattr(tree, key)
    return tree
