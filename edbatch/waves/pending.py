"""Keeps the recorded nodes that have not run, and chooses those that a wave runs.

Nodes whose values an instance asks for have to run in the next wave, with all that they
depend on. Other nodes are delayed: they run, in wide batches, when they are needed or
when many are waiting. Nodes that are not needed by the end of their instance, such as
those of a hypothesis that a beam search drops, never run.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from edbatch.graph.structure import GraphStructure
from edbatch.graph.tape import Tape
from edbatch.graph.type_table import TypeTable
from edbatch.schedule.policy import Policy, needs_check, reject_invalid
from edbatch.schedule.schedule import Schedule
from edbatch.waves.needed_nodes import (
    find_needed,
    nodes_left,
    nodes_of_values,
    part_structure,
)
from edbatch.waves.value_rows import ValueRows
from edbatch.waves.wave_nodes import (
    Pools,
    RecordedNodes,
    WaveNodes,
    join_nodes,
    no_nodes,
    nodes_of,
    select_nodes,
    take_slots,
)

_MOST_PARTS = 64  # most parts behind before they are merged
_MOST_WAITING = 4096  # most delayed nodes before a wave runs all
_NOTHING = no_nodes()


class PendingNodes:
    """The nodes that have not run, in the order in which they were recorded.

    Most waves need only the nodes recorded last, so these are kept separately, in
    front; node numbers are indices into the front. The other nodes wait behind, and
    `merge` moves them to the front. Nodes of instances that are set aside are ignored
    by waves.

    Args:
        types: The model's types.
    """

    def __init__(self, types: TypeTable) -> None:
        self._types = types
        self._front = _NOTHING
        self._behind: list[tuple[RecordedNodes, np.ndarray]] = []  # nodes that wait
        self._num_behind = 0
        self._aside: list[tuple[RecordedNodes, np.ndarray]] = []
        self._are_in_order = True  # whether nodes behind are in the recorded order
        self._operand_node: np.ndarray | None = None
        self._in_parts = False  # whether nodes of instances may be interleaved in front
        self._needed: tuple[np.ndarray, GraphStructure] | None = None

    def __len__(self) -> int:
        """Number of nodes, except those set aside."""
        return len(self._front) + self._num_behind

    @property
    def front(self) -> RecordedNodes:
        """The nodes in front and their external inputs."""
        return self._front

    @property
    def nodes(self) -> WaveNodes:
        """The nodes in front."""
        return self._front.nodes

    @property
    def pools(self) -> Pools:
        """External inputs of the nodes in front."""
        return self._front.pools

    @property
    def operand_node(self) -> np.ndarray:
        """The node that each operand slot in front reads; ``[E] int32``.

        It is -1 if there is none or it is not in front, for example because it has run.
        """
        if self._operand_node is None:
            outputs, nodes = self._types.counts[2], self.nodes
            self._operand_node = nodes_of_values(nodes, outputs, nodes.operands)
        return self._operand_node

    def add(self, tape: Tape, parts: Sequence[tuple[int, int]]) -> RecordedNodes:
        """Adds the nodes recorded on a tape, in front; the tape is not changed.

        Args:
            tape: The tape.
            parts: Parts of the tape, in order: the number of an instance, and how many
                nodes it recorded.

        Returns:
            The added nodes.
        """
        new = nodes_of(tape, parts)
        self._put_front_behind()
        self._front = new
        return new

    def merge(self, rows: ValueRows) -> None:
        """Moves all nodes to the front; drops those whose values are not in use.

        Args:
            rows: Rows of the values, and which values are in use.
        """
        if not self._behind and rows.are_used(self.nodes.first_value).all():
            return
        self._put_front_behind()
        parts = [found for found, _ in self._behind]
        begins = np.cumsum([0, *map(len, parts[:-1])])
        behind = zip(self._behind, begins, strict=True)
        kept = np.concatenate([own + begin for (_, own), begin in behind])
        nodes = join_nodes(parts, self._types)
        kept = kept[rows.are_used(nodes.first_value[kept])].astype(np.int32)
        if not self._are_in_order:
            # Nodes without outputs have the first value of the next node.
            has_outputs = self._types.counts[2][nodes.node_type[kept]] > 0
            kept = kept[np.lexsort((has_outputs, nodes.first_value[kept]))]
            self._are_in_order = True
        pools = [found.pools for found in parts]
        self._front = select_nodes(nodes, kept, pools, self._types)
        self._behind, self._num_behind = [], 0
        self._in_parts = True

    def set_aside(
        self, owners: Collection[int], *, behind: bool = True, others: bool = False
    ) -> None:
        """Sets all nodes of some instances aside, where waves ignore them.

        Args:
            owners: The numbers of the instances.
            behind: Whether to search the nodes behind, too.
            others: Whether to set the nodes of all other instances aside instead.
        """
        numbers = np.array([*owners], np.int32)
        front, rest_behind = self._front, []
        is_aside = np.isin(front.nodes.owner, numbers, invert=others)
        if is_aside.any():
            rest = np.flatnonzero(~is_aside).astype(np.int32)
            self._aside.append((front, np.flatnonzero(is_aside).astype(np.int32)))
            # Drops the external inputs of nodes set aside, which need room in a wave.
            self._front = select_nodes(front.nodes, rest, [front.pools], self._types)
            self._operand_node = self._needed = None
        if not behind:
            return
        for found, kept in self._behind:
            is_aside = np.isin(found.nodes.owner[kept], numbers, invert=others)
            if is_aside.any():
                self._aside.append((found, kept[is_aside]))
                self._num_behind -= int(is_aside.sum())
            if not is_aside.all():
                rest_behind.append((found, kept[~is_aside]))
        self._behind = rest_behind

    def bring_back(self) -> None:
        """Adds the nodes that were set aside to those behind."""
        if self._aside:
            self._behind += self._aside
            self._num_behind += sum(len(kept) for _, kept in self._aside)
            self._aside, self._are_in_order = [], False

    def _put_front_behind(self) -> None:
        """Moves all nodes from the front to those behind."""
        self._put_behind(np.arange(len(self._front), dtype=np.int32))

    def _put_behind(self, kept: np.ndarray) -> None:
        """Moves some nodes from the front to those behind, and drops the others."""
        if len(kept):
            self._behind.append((self._front, kept))
            self._num_behind += len(kept)
        self._front, self._operand_node, self._needed = _NOTHING, None, None
        self._in_parts = False

    def needed_for(self, values: np.ndarray, rows: ValueRows) -> np.ndarray:
        """Finds the nodes that have to run to compute values; merges if necessary.

        Args:
            values: Numbers of values; ``[n] int64``.
            rows: Rows of the values that have been computed.

        Returns:
            The nodes, those of an instance together and in the order in which they were
            recorded; ``[m] int32``.
        """
        if not self._are_in_order:  # nodes in front may be older than some behind
            self.merge(rows)
        needed, reads = self._needed_in_front(values, rows)
        if reads:
            self.merge(rows)
            needed, _ = self._needed_in_front(values, rows)
        return self._by_instance(needed)

    def to_run(self, values: np.ndarray, rows: ValueRows) -> tuple[np.ndarray, bool]:
        """Finds the nodes that a wave runs: needed ones, or all if too many wait.

        Args:
            values: As for `needed_for`.
            rows: Rows of the values, and which values are in use.

        Returns:
            The nodes, as from `needed_for`, and whether they are all nodes in use.
        """
        needed = self.needed_for(values, rows)
        if len(self) - len(needed) > _MOST_WAITING:
            self.merge(rows)  # drops nodes whose values are not in use
            needed = self.needed_for(values, rows)
            if len(self) - len(needed) > _MOST_WAITING:
                return self.all(), True
        return needed, False

    def _needed_in_front(
        self, values: np.ndarray, rows: ValueRows
    ) -> tuple[np.ndarray, bool]:
        """Finds needed nodes in front, and whether nodes behind are needed, too."""
        needed, self._operand_node, reads, *parts = find_needed(
            self.nodes, self._types.counts[2], values, rows.first, rows.tables()[0]
        )
        self._needed = needed, GraphStructure(self._types.keys, *parts)
        return needed, bool(self._behind) and reads

    def all(self) -> np.ndarray:
        """Returns all nodes in front, those of an instance together; ``[N] int32``."""
        return self._by_instance(np.arange(len(self._front), dtype=np.int32))

    def _by_instance(self, chosen: np.ndarray) -> np.ndarray:
        if not self._in_parts:
            return chosen
        own = np.argsort(self.nodes.owner[chosen], kind="stable")
        found: np.ndarray = chosen[own]
        return found

    def schedule(self, chosen: np.ndarray, policy: Policy) -> Schedule:
        """Schedules nodes.

        Args:
            chosen: The nodes, those of an instance together; ``[n] int32``. All nodes
                that they depend on are among them or have run.
            policy: The policy.

        Returns:
            Their schedule.

        Raises:
            PolicyError: The policy belongs to another model, or its schedule is
                invalid.
        """
        if not len(chosen):
            nothing = np.zeros(0, np.int32)
            return Schedule(nothing, np.zeros(1, np.int32), nothing)
        structure = self.structure(chosen)
        found = policy.schedule(structure)
        if needs_check(policy):
            found = reject_invalid(found, structure, policy)
        if len(chosen) == len(self._front) and not self._in_parts:
            return found
        return replace(found, order=chosen[found.order])

    def structure(self, chosen: np.ndarray) -> GraphStructure:
        """Returns the dependencies among some nodes; nodes that ran are left out.

        Args:
            chosen: As for `schedule`.

        Returns:
            The structure of these nodes.
        """
        if self._needed is not None and self._needed[0] is chosen:
            return self._needed[1]
        return GraphStructure(
            self._types.keys, *part_structure(chosen, self.nodes, self.operand_node)
        )

    def computes(self, values: np.ndarray, order: np.ndarray) -> np.ndarray:
        """Returns which of some values are computed by some nodes.

        Args:
            values: Numbers of values that have not been computed; ``[n] int64``.
            order: The nodes; ``[m] int32``.

        Returns:
            Whether the nodes compute each of the values; ``[n] bool``.
        """
        outputs = self._types.counts[2]
        chosen = np.zeros(len(self.nodes.node_type) + 1, np.bool_)
        chosen[order] = True
        found: np.ndarray = chosen[nodes_of_values(self.nodes, outputs, values)]
        return found

    def find_read(self, rows: ValueRows) -> np.ndarray:
        """Finds the values that pending nodes read.

        Args:
            rows: Rows of the values in the table.

        Returns:
            For each value from ``rows.first`` on, whether a node reads it; ``[V]
            bool``.
        """
        read = np.zeros(len(rows), np.bool_)
        operands = [self.nodes.operands]
        for found, kept in (*self._behind, *self._aside):
            own = found.nodes
            operands.append(take_slots(kept, own.operand_start, own.operands)[1])
        for each in operands:
            read[each[each >= rows.first] - rows.first] = True
        return read

    def remove(self, ran: np.ndarray, rows: ValueRows) -> None:
        """Removes nodes that ran; moves the other nodes from the front to those behind.

        Args:
            ran: The nodes that ran; ``[n] int32``.
            rows: Rows of the values, and which values are in use.
        """
        self._put_behind(nodes_left(len(self._front), ran))
        if len(self._behind) > _MOST_PARTS:
            self.merge(rows)
            self._put_front_behind()
