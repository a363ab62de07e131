"""Traces the outputs of cells, once for calls that differ only in parameter paths."""

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from edbatch.errors import CellError
from edbatch.graph.array_kinds import ArrayKinds
from edbatch.graph.cell import CELLS_MADE, Cell
from edbatch.graph.cell_outputs import OutputSpec, infer_outputs
from edbatch.graph.constants import constant_key
from edbatch.graph.node_type import CallTemplate, NodeType, input_specs
from edbatch.graph.part_structure import PartStructures

_MOST_COPIES = 100  # of a cell's function; beyond it, a loop creates cells by mistake

Output = tuple[tuple[int, ...], Any]  # array kinds, and structure


class OutputTraces:
    """Traces the cells of a model on the shapes that they are called with.

    Args:
        params_spec: The parameters' structure, ``jax.ShapeDtypeStruct`` leaves.
        kinds: The model's array kinds; kinds of outputs are added.
        compute_dtype: The dtype that cells compute in; None for the dtypes of their
            arguments.
    """

    def __init__(
        self, params_spec: Any, kinds: ArrayKinds, compute_dtype: np.dtype | None
    ) -> None:
        self._params_spec, self._kinds = params_spec, kinds
        self._made_before = next(CELLS_MADE)
        self._compute_dtype = compute_dtype
        self._in_dtype: dict[Cell, Callable[..., Any]] = {}
        self._copies: dict[Any, set[Callable[..., Any]]] = {}
        self._structures = PartStructures(params_spec)
        self._known: dict[Hashable, Output] = {}

    def form_of(
        self,
        cell: Cell,
        template: CallTemplate,
        operand_kinds: tuple[int, ...],
        external_kinds: tuple[int, ...],
    ) -> Hashable:
        """Returns a key shared by calls that differ only in their parameters' paths."""
        without_paths = self._without_paths(template)
        return call_identity(cell, without_paths, operand_kinds, external_kinds)

    def of(
        self,
        form: Hashable,
        node_type: NodeType,
        trace: Callable[[], OutputSpec] | None,
    ) -> Output:
        """Returns array kinds and structure of a new type's output.

        Args:
            form: The `form_of` its call.
            node_type: The type.
            trace: Traces its cell and returns the leaves and the tree of the output;
                None to trace it for its output only.

        Returns:
            The array kind of each output, and the pytree structure of the outputs.

        Raises:
            CellError: The function cannot be traced on these shapes, or too many copies
                of the cell were created.
        """
        if form not in self._known:
            self._limit_copies(node_type.cell)
            self._known[form] = self.trace(node_type, trace)
        return self._known[form]

    def _without_paths(self, template: CallTemplate) -> CallTemplate:
        """Returns a template with each parameter's path replaced by its structure."""
        leaves = tuple(
            (kind, self._structures.number(content._steps))
            if kind == "parameter"
            else (kind, content)
            for kind, content in template.leaves
        )
        return replace(template, leaves=leaves)

    def function_of(self, cell: Cell) -> Callable[..., Any]:
        """Returns a cell's function in the compute dtype; always the same object."""
        if self._compute_dtype is None:
            return cell.function
        known = self._in_dtype.get(cell)
        if known is None:
            known = cell.function_in(self._compute_dtype)
            known = self._in_dtype.setdefault(cell, known)
        return known

    def _limit_copies(self, cell: Cell) -> None:
        """Raises CellError if a model seems to create a cell again and again."""
        code = getattr(cell.function, "__code__", None)
        if code is None or cell.number < self._made_before:
            return
        functions = self._copies.setdefault(code, set())
        functions.add(cell.function)
        if len(functions) > _MOST_COPIES:
            raise CellError(
                f"cell {cell.name!r} was made anew {len(functions)} times, each time as"
                " a separate type, which is never batched with the others; define the"
                " cell once, outside the model, and pass what differs as an argument"
            )

    def trace(
        self, node_type: NodeType, trace: Callable[[], OutputSpec] | None = None
    ) -> Output:
        """Traces a type's cell, without using the cache; see `of`.

        Raises:
            CellError: It cannot be traced on these shapes.
        """
        kinds, template = self._kinds, node_type.template
        name, function = node_type.key.cell, node_type.function
        slots = node_type.operand_kinds, node_type.external_kinds
        inputs = input_specs(template, *slots, kinds.avals)

        def trace_output() -> OutputSpec:
            output = jax.eval_shape(
                lambda params, *rest: template.call(function, params, *rest),
                self._params_spec,
                *inputs,
            )
            return jax.tree.flatten(output)

        leaves, tree = infer_outputs(name, function, inputs, trace or trace_output)
        return tuple(kinds.number(x.shape, x.dtype) for x in leaves), tree


def call_identity(
    cell: Cell,
    template: CallTemplate,
    operand_kinds: tuple[int, ...],
    external_kinds: tuple[int, ...],
) -> Hashable:
    """Returns a key that is equal for calls of the same type."""
    exact = template.with_exact_constants()
    return constant_key(cell.function), exact, operand_kinds, external_kinds
