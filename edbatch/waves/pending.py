"""Nodes that were recorded and have not run, and those of them that a wave runs.

What an instance asks for has to run in the next wave, with all that it depends on. What
nobody has asked for yet waits for company: it runs, in wide batches, when it is needed
or when much waits. What is not needed by the end of its instance, such as a hypothesis
that a beam search drops, never runs.
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

_MOST_PARTS = 64  # waves of which nodes wait apart
_MOST_WAITING = 4096  # nodes that nobody has asked for
_NOTHING = no_nodes()


class PendingNodes:
    """The nodes that have not run, in the order in which they were recorded.

    Most waves need only what was recorded last, so that part stands apart, in front;
    numbers of nodes are numbers in it. `merge` moves the others there.

    Args:
        types: The model's types.
    """

    def __init__(self, types: TypeTable) -> None:
        self._types = types
        self._front = _NOTHING
        self._behind: list[tuple[RecordedNodes, np.ndarray]] = []  # which of them wait
        self._num_behind = 0
        self._aside: list[tuple[RecordedNodes, np.ndarray]] = []
        self._are_in_order = True  # those behind
        self._operand_node: np.ndarray | None = None
        self._in_parts = False  # whether an instance's nodes may stand apart in front
        self._needed: tuple[np.ndarray, GraphStructure] | None = None

    def __len__(self) -> int:
        """Number of nodes, but for those aside."""
        return len(self._front) + self._num_behind

    @property
    def front(self) -> RecordedNodes:
        """What is in front."""
        return self._front

    @property
    def nodes(self) -> WaveNodes:
        """The nodes in front."""
        return self._front.nodes

    @property
    def pools(self) -> Pools:
        """Their external inputs."""
        return self._front.pools

    @property
    def operand_node(self) -> np.ndarray:
        """The node that each operand slot reads; -1 where there is none or it has run.

        ``[E] int32``; of the nodes in front.
        """
        if self._operand_node is None:
            outputs, nodes = self._types.counts[2], self.nodes
            self._operand_node = nodes_of_values(nodes, outputs, nodes.operands)
        return self._operand_node

    def add(self, tape: Tape, parts: Sequence[tuple[int, int]]) -> RecordedNodes:
        """Adds what was recorded on a tape, which is left as it is.

        Args:
            tape: The tape.
            parts: In turn, the number of an instance and how many nodes it recorded.

        Returns:
            What was added.
        """
        new = nodes_of(tape, parts)
        self._put_front_behind()
        self._front = new
        return new

    def merge(self, rows: ValueRows) -> None:
        """Moves all nodes to the front, but for those that nobody needs any more.

        Args:
            rows: Which values are in use.
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
        """Lets all nodes of some instances stand aside, where no wave looks.

        Args:
            owners: The numbers of the instances.
            behind: Whether there may be some behind, too.
            others: Whether those of all other instances stand aside instead.
        """
        numbers = np.array([*owners], np.int32)
        front, rest_behind = self._front, []
        is_aside = np.isin(front.nodes.owner, numbers, invert=others)
        if is_aside.any():
            rest = np.flatnonzero(~is_aside).astype(np.int32)
            self._aside.append((front, np.flatnonzero(is_aside).astype(np.int32)))
            # Without the external inputs of the others, which need room in a wave.
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
        """Lets what stands aside wait behind, with the others."""
        if self._aside:
            self._behind += self._aside
            self._num_behind += sum(len(kept) for _, kept in self._aside)
            self._aside, self._are_in_order = [], False

    def _put_front_behind(self) -> None:
        """Lets all nodes in front wait behind."""
        self._put_behind(np.arange(len(self._front), dtype=np.int32))

    def _put_behind(self, kept: np.ndarray) -> None:
        """Lets nodes in front wait behind; there is nothing in front then."""
        if len(kept):
            self._behind.append((self._front, kept))
            self._num_behind += len(kept)
        self._front, self._operand_node, self._needed = _NOTHING, None, None
        self._in_parts = False

    def needed_for(self, values: np.ndarray, rows: ValueRows) -> np.ndarray:
        """Finds the nodes that have to run before values are there, and merges them.

        Args:
            values: Numbers of values; ``[n] int64``.
            rows: Which values have rows.

        Returns:
            The nodes, those of an instance together and in the order in which they were
            recorded; ``[m] int32``.
        """
        if not self._are_in_order:  # those in front may be older than some behind
            self.merge(rows)
        needed, reads = self._needed_in_front(values, rows)
        if reads:
            self.merge(rows)
            needed, _ = self._needed_in_front(values, rows)
        return self._by_instance(needed)

    def to_run(self, values: np.ndarray, rows: ValueRows) -> tuple[np.ndarray, bool]:
        """Finds the nodes that a wave runs: what is needed, or all where much waits.

        Args:
            values: As for `needed_for`.
            rows: Which values are in use, and which have rows.

        Returns:
            The nodes, as from `needed_for`, and whether they are all that are in use.
        """
        needed = self.needed_for(values, rows)
        if len(self) - len(needed) > _MOST_WAITING:
            self.merge(rows)  # drops what nobody needs any more
            needed = self.needed_for(values, rows)
            if len(self) - len(needed) > _MOST_WAITING:
                return self.all(), True
        return needed, False

    def _needed_in_front(
        self, values: np.ndarray, rows: ValueRows
    ) -> tuple[np.ndarray, bool]:
        """Finds needed nodes in front, and whether they read ones behind."""
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
            chosen: The nodes, those of an instance together; ``[n] int32``. All that
                they depend on is among them or has run.
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
        """Returns who reads whom; values of nodes that ran are there already.

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
        """Tells which values nodes compute.

        Args:
            values: Numbers of values that have not been computed; ``[n] int64``.
            order: The nodes; ``[m] int32``.

        Returns:
            Whether each of the values is computed; ``[n] bool``.
        """
        outputs = self._types.counts[2]
        chosen = np.zeros(len(self.nodes.node_type) + 1, np.bool_)
        chosen[order] = True
        found: np.ndarray = chosen[nodes_of_values(self.nodes, outputs, values)]
        return found

    def find_read(self, rows: ValueRows) -> np.ndarray:
        """Finds the values that pending nodes read.

        Args:
            rows: Which values are in use.

        Returns:
            For each value from ``rows.first`` on, whether one does; ``[V] bool``.
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
        """Removes nodes that ran; the others in front wait behind.

        Args:
            ran: The nodes that ran; ``[n] int32``.
            rows: Which values are in use.
        """
        self._put_behind(nodes_left(len(self._front), ran))
        if len(self._behind) > _MOST_PARTS:
            self.merge(rows)
            self._put_front_behind()
