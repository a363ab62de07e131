"""The types of a model, with those of what runs ahead of them."""

import math
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from edbatch.graph.node_type import CallTemplate, NodeType, Padding, Slots
from edbatch.graph.type_table import TypeTable
from edbatch.memory_planner.hoisting.split_cell import SplitCell, split_cell

NONE = -1

# A type is split if its cell's products read at least so many numbers of parameters,
# and so many for each number that they hand on to a batch, and if it has so many
# batches. Narrow batches read much for little, and many batches read it often. Lattices
# gain (see `docs/results-memory.md`); child-sum trees, with few and wide batches, and
# cells of 64, whose parameters stay in the cache, would lose.
_LEAST_PARAMETERS = 1 << 15
_LEAST_SHARE = 8
_LEAST_BATCHES = 32


class Numbers(NamedTuple):
    """The positions of a model's ``T`` types in the table of split ones.

    Attributes:
        own: Of each type, or of what is left of it.
        ahead: Of what runs ahead of it, or `NONE`.
    """

    own: np.ndarray  # [T] int32
    ahead: np.ndarray  # [T] int32


class SplitTypes:
    """The types of one model as they run, shared by the threads that plan for it.

    Whether a type is split is decided by the first minibatch that has it.

    Args:
        recorded: The types as they were recorded; the table may grow.
        always: Whether to split all cells that can be, and not where it pays.

    Attributes:
        table: The types as they run; array kinds are those of the recorded ones. Until
            one is split, all have the positions that they have there.
    """

    def __init__(self, recorded: TypeTable, *, always: bool = False) -> None:
        self.table = recorded.with_other_types()
        self._recorded = recorded
        self._always = always
        self._decided = np.zeros(0, np.bool_)
        self._own: list[int] = []
        self._ahead: list[int] = []
        self._numbers: Numbers | None = None
        self._lock = threading.Lock()

    def numbers(self, batch_type: np.ndarray, batch_size: np.ndarray) -> Numbers | None:
        """Returns the positions of all types that are known by now.

        Args:
            batch_type: The types of a minibatch's batches; ``[S] int32``.
            batch_size: Their numbers of nodes; ``[S]``.

        Returns:
            The positions; None if no type is split yet.
        """
        with self._lock:
            if len(self._own) < len(self._recorded):
                self._extend()
            if not self._decided[batch_type].all():
                for type_id in np.unique(batch_type).tolist():
                    if not self._decided[type_id]:
                        self._decide(type_id, batch_size[batch_type == type_id])
            return self._numbers

    def _extend(self) -> None:
        """Takes over types that were recorded since."""
        for node_type in self._recorded.types[len(self._own) :]:
            self._own.append(self.table.add(node_type).id)
            self._ahead.append(NONE)
        decided = np.zeros(len(self._own), np.bool_)
        decided[: len(self._decided)] = self._decided
        self._decided = decided
        if self._numbers is not None:
            self._number()

    def _number(self) -> None:
        self._numbers = Numbers(
            np.array(self._own, np.int32), np.array(self._ahead, np.int32)
        )

    def _decide(self, type_id: int, sizes: np.ndarray) -> None:
        """Splits a type if that pays for batches of these sizes."""
        self._decided[type_id] = True
        node_type = self._recorded.types[type_id]
        if not self._always and len(sizes) < _LEAST_BATCHES:
            return
        cell = split_cell(node_type, self._recorded)
        if cell is None:
            return
        handed_on = sum(math.prod(each.shape) for each in cell.vectors)
        least = max(_LEAST_PARAMETERS, _LEAST_SHARE * float(sizes.mean()) * handed_on)
        pays = cell.parameters_read >= least
        if not (self._always or pays):
            return
        kinds = tuple(self.table.kind(each.shape, each.dtype) for each in cell.vectors)
        self._ahead[type_id] = self.table.add(self._before(node_type, cell, kinds)).id
        self._own[type_id] = self.table.add(self._after(node_type, cell, kinds)).id
        self._number()

    def _before(
        self, node_type: NodeType, cell: SplitCell, kinds: tuple[int, ...]
    ) -> NodeType:
        """The type of what runs ahead."""
        template = node_type.template
        paddings = [each for each in template.paddings if each.kind == "external"]

        def ahead(params: Any, externals: Any, **masks: Any) -> Any:
            return cell.ahead(params, externals, [masks[p.mask] for p in paddings])

        return replace(
            node_type,
            key=replace(node_type.key, cell=f"{node_type.key.cell}.ahead", arity=0),
            function=ahead,
            template=self._template((), template.externals, paddings),
            operand_kinds=(),
            output_kinds=kinds,
            output_tree=jax.tree.structure([0] * len(kinds)),
        )

    def _after(
        self, node_type: NodeType, cell: SplitCell, kinds: tuple[int, ...]
    ) -> NodeType:
        """The type of the rest, which reads one operand more per kind."""
        template = node_type.template
        first = len(node_type.operand_kinds)
        added = tuple(Slots((first + k,)) for k in range(len(kinds)))

        def rest(params: Any, operands: Any, externals: Any, **masks: Any) -> Any:
            own = [masks[each.mask] for each in template.paddings]
            return cell.rest(params, operands, externals, own)

        return replace(
            node_type,
            function=rest,
            template=self._template(
                (*template.operands, *added), template.externals, template.paddings
            ),
            operand_kinds=(*node_type.operand_kinds, *kinds),
        )

    def _template(
        self,
        operands: Sequence[Slots],
        externals: Sequence[Slots],
        paddings: Sequence[Padding],
    ) -> CallTemplate:
        """How to call the functions above: with lists of operands and externals."""
        params = self._recorded.params
        leaves = [("static", None) if params is None else ("parameter", params)]
        leaves += [("operand", k) for k in range(len(operands))]
        leaves += [("external", k) for k in range(len(externals))]
        lists = [[0] * len(operands)] if operands else []
        arguments = (0, *lists, [0] * len(externals))
        return CallTemplate(
            jax.tree.structure((arguments, {})),
            tuple(leaves),
            tuple(operands),
            tuple(externals),
            tuple(paddings),
        )
