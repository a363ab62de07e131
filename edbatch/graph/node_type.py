"""The type of a node: which nodes may run together in one batch.

Two nodes share a type if they call the same cell, with the same part of the parameters,
on arguments of the same structure, shapes and dtypes. Types are compared by these facts
themselves, never by a hash alone.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np

from edbatch.graph.cell import Cell
from edbatch.graph.constants import constant_key, structure_key
from edbatch.graph.context import inside_cell
from edbatch.graph.family import Family
from edbatch.graph.parameters import ParameterPath, path_name, resolve

_NO_DEFAULT = inspect.Parameter.empty


@dataclass(frozen=True)
class Aval:
    """Shape and dtype of an array.

    Example:
        >>> import numpy as np
        >>> Aval((2, 3), np.dtype("float32")).num_bytes
        24
    """

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def num_bytes(self) -> int:
        """Size of one array of this kind, in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True)
class TypeKey:
    """The identity of a type across runs, hidden sizes and files.

    Attributes:
        cell: Name of the cell.
        path: Dotted path of the parameters that it uses; several are joined by a
            comma.
        arity: Number of values of other nodes that it reads.
        variant: 0, or a running number if a model has several types that agree in
            everything else. They differ in shapes, dtypes, structure or static
            arguments, or the cell was redefined.

    Example:
        >>> from edbatch import TypeKey
        >>> str(TypeKey("compose", "encoder.0", 2)), str(TypeKey("leaf", "", 0, 1))
        ('compose@encoder.0/2', 'leaf/0~1')
    """

    cell: str
    path: str
    arity: int
    variant: int = 0

    def __str__(self) -> str:
        path = f"@{self.path}" if self.path else ""
        variant = f"~{self.variant}" if self.variant else ""
        return f"{self.cell}{path}/{self.arity}{variant}"


@dataclass(frozen=True)
class Slots:
    """The slots of a node that feed one array argument of the cell.

    Attributes:
        slots: Slot numbers; one, or K for a padded list.
        stacked: Whether the argument is the stack ``[K, ...]`` of the slots.
    """

    slots: tuple[int, ...]
    stacked: bool = False


@dataclass(frozen=True)
class Padding:
    """One padded list argument of a cell.

    Attributes:
        mask: Name of the keyword argument that receives the mask.
        kind: ``"operand"`` or ``"external"``: the source of its first array.
        group: Index of its `Slots` of that kind; a missing slot is False in the mask.
    """

    mask: str
    kind: str
    group: int


@dataclass(frozen=True)
class CallTemplate:
    """The form of a call: how to call a cell's function with flat arrays.

    Attributes:
        treedef: Structure of ``(args, kwargs)``; a padded list is one element of it,
            whose leaves are stacks.
        leaves: For each leaf in order: ``("operand", g)`` or ``("external", g)`` (the
            g-th group of slots of that kind), ``("rng", g)`` (the node's key, the
            g-th external group), ``("parameter", path)`` or ``("static", value)``.
        operands: Groups of operand slots.
        externals: Groups of external slots.
        paddings: Padded list arguments.

    Example:
        >>> import edbatch as eb
        >>> @eb.cell
        ... def double(params, x):
        ...     return params * x
        >>> def model(params, x):
        ...     return double(params, double(params, x))
        >>> batched = eb.batch(model, params=2.0)
        >>> first, then = batched.graph([1.0]).types.types
        >>> [len(each.template.operands) for each in (first, then)]
        [0, 1]
    """

    treedef: Any  # a jax PyTreeDef
    leaves: tuple[tuple[str, Any], ...]
    operands: tuple[Slots, ...]
    externals: tuple[Slots, ...]
    paddings: tuple[Padding, ...] = ()

    def with_exact_constants(self) -> "CallTemplate":
        """Returns a key of the call, with `constant_key` in place of each constant.

        Static fields of the arguments, for example of modules, are constants, too.
        """
        leaves = tuple(
            (kind, constant_key(content) if kind == "static" else content)
            for kind, content in self.leaves
        )
        return replace(self, leaves=leaves, treedef=structure_key(self.treedef))

    def call(
        self,
        function: Callable[..., Any],
        params: Any,
        operands: Sequence[Any],
        externals: Sequence[Any],
        masks: Sequence[Any],
    ) -> Any:
        """Calls the function on one instance's arrays.

        Args:
            function: The cell's function.
            params: As for `arguments`.
            operands: As for `arguments`.
            externals: As for `arguments`.
            masks: As for `arguments`.

        Returns:
            The function's result.
        """
        args, kwargs = self.arguments(params, operands, externals, masks)
        with inside_cell():
            return function(*args, **kwargs)

    def arguments(
        self,
        params: Any,
        operands: Sequence[Any],
        externals: Sequence[Any],
        masks: Sequence[Any],
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Builds the function's arguments from one instance's arrays.

        Args:
            params: The model's parameters, or their parts if leaves are ``"part"``.
            operands: One array per operand group, ``[K, ...]`` if stacked.
            externals: One array per external group, likewise.
            masks: One boolean ``[K]`` array per padded argument.

        Returns:
            The positional and the keyword arguments.
        """
        values = []
        for kind, content in self.leaves:
            if kind == "operand":
                values.append(operands[content])
            elif kind in ("external", "rng"):
                values.append(externals[content])
            elif kind == "parameter":
                values.append(resolve(params, content))
            elif kind == "part":
                values.append(params[content])
            else:
                values.append(content)
        args, kwargs = jax.tree.unflatten(self.treedef, values)
        named_masks = {
            padding.mask: mask
            for padding, mask in zip(self.paddings, masks, strict=True)
        }
        return args, kwargs | named_masks


@dataclass(frozen=True, eq=False)
class NodeType:
    """One type of node of one model. Compared by identity: a model has each type once.

    Attributes:
        id: Position in the model's table of types.
        key: The type's identity across runs.
        cell: The cell.
        function: The cell's function, for one instance, or a part of it.
        template: The template by which the function is called.
        operand_kinds: Array kind per operand slot.
        external_kinds: Array kind per external slot.
        output_kinds: Array kind per output leaf.
        output_tree: Structure of the cell's output.
        is_stored: Whether it comes from a pickle, so that its cell may have differed
            where it was recorded.
        family: Members whose parameters its nodes read, one member per chunk; None if
            all nodes read the same parameters.

    Example:
        >>> import edbatch as eb
        >>> @eb.cell
        ... def double(params, x):
        ...     return params * x
        >>> batched = eb.batch(double, params=2.0)
        >>> [node_type] = batched.graph([1.0]).types.types
        >>> str(node_type.key), node_type.cell
        ('double/0', <cell 'double'>)
    """

    id: int
    key: TypeKey
    cell: Cell = field(repr=False)
    function: Callable[..., Any] = field(repr=False)
    template: CallTemplate = field(repr=False)
    operand_kinds: tuple[int, ...]
    external_kinds: tuple[int, ...]
    output_kinds: tuple[int, ...]
    output_tree: Any = field(repr=False)  # a jax PyTreeDef
    is_stored: bool = field(default=False, repr=False)
    family: Family | None = field(default=None, repr=False)

    def params_spec(self, params: Any) -> Any:
        """Returns the structure of the parameters that the type's function takes.

        Args:
            params: The structure of the model's parameters.
        """
        return params if self.family is None else self.family.spec(params)

    @property
    def takes_rng(self) -> bool:
        """Whether each node has its own random key."""
        return any(kind == "rng" for kind, _ in self.template.leaves)

    @cached_property
    def needs_rng(self) -> bool:
        """Whether the type's nodes cannot run without their keys."""
        return self.takes_rng and _default_of_rng(self.function) is _NO_DEFAULT

    def without_rng(self) -> "NodeType":
        """Returns the type as it runs without keys: with the default of `rng`.

        Returns:
            The type without keys, the same object in every call. Its slots are
            unchanged, but the key's slot is not read. A type that takes no key is
            returned as it is, and so is one whose `rng` has no default: programs
            without keys contain such a cell, but never run it.
        """
        return self._without_rng if self.takes_rng and not self.needs_rng else self

    @cached_property
    def _without_rng(self) -> "NodeType":
        default = ("static", _default_of_rng(self.function))
        leaves = tuple(
            default if leaf[0] == "rng" else leaf for leaf in self.template.leaves
        )
        return replace(self, template=replace(self.template, leaves=leaves))


def _default_of_rng(function: Callable[..., Any]) -> Any:
    return inspect.signature(function).parameters["rng"].default


def parameter_names(leaves: Sequence[tuple[str, Any]]) -> str:
    """Joins the parameter paths among a call's leaves.

    Args:
        leaves: As in `CallTemplate.leaves`.

    Returns:
        Dotted paths, joined by commas; empty if the whole tree or nothing is used.
    """
    paths = [content for kind, content in leaves if kind == "parameter"]
    assert all(isinstance(each, ParameterPath) for each in paths)
    return ",".join(filter(None, map(path_name, paths)))


def input_specs(
    template: CallTemplate,
    operand_kinds: Sequence[int],
    external_kinds: Sequence[int],
    avals: Sequence[Aval],
    batch_axes: tuple[int, ...] = (),
) -> tuple[list[Any], list[Any], list[Any]]:
    """Describes the arrays that a call takes in addition to the parameters.

    Args:
        template: The call.
        operand_kinds: Array kind per operand slot.
        external_kinds: Array kind per external slot.
        avals: The array kinds.
        batch_axes: Leading axes of every array; none for one instance.

    Returns:
        ``jax.ShapeDtypeStruct`` lists of operands, external inputs and masks, as
        `CallTemplate.call` takes them.
    """

    def describe(
        groups: Sequence[Slots], kinds: Sequence[int]
    ) -> list[jax.ShapeDtypeStruct]:
        specs = []
        for group in groups:
            aval = avals[kinds[group.slots[0]]]
            head = (*batch_axes, len(group.slots)) if group.stacked else batch_axes
            specs.append(jax.ShapeDtypeStruct(head + aval.shape, aval.dtype))
        return specs

    operands = describe(template.operands, operand_kinds)
    externals = describe(template.externals, external_kinds)
    masks = []
    for padding in template.paddings:
        source = operands if padding.kind == "operand" else externals
        shape = source[padding.group].shape[: len(batch_axes) + 1]
        masks.append(jax.ShapeDtypeStruct(shape, np.bool_))
    return operands, externals, masks
