"""Nodes that were recorded and have not run, and those of them that a wave runs.

What an instance asks for has to run in the next wave, with all that it depends on. What
nobody has asked for yet waits for company: once it is ready, it takes a lane that a
batch of its type would leave empty. What is not needed by the end of its instance, such
as a hypothesis that a beam search drops, never runs.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edbatch.graph.structure import GraphStructure
from edbatch.graph.tape import Tape
from edbatch.graph.type_table import TypeTable
from edbatch.schedule.policy import Policy, needs_check, reject_invalid
from edbatch.schedule.schedule import Schedule
from edbatch.waves.encoding import LoopTables, empty_lanes
from edbatch.waves.value_rows import ValueRows
from edbatch.waves.wave_nodes import (
    Pools,
    RecordedNodes,
    WaveNodes,
    count_ready,
    find_company,
    find_needed,
    join_nodes,
    no_nodes,
    nodes_of,
    nodes_of_values,
    reads_others,
    renumber,
    select_nodes,
    take_along,
    take_slots,
)


class PendingNodes:
    """The nodes that have not run, in the order in which they were recorded.

    Most waves need only what was recorded last, so that part stands apart, in front;
    numbers of nodes are numbers in it. `merge` moves the others there.

    Args:
        types: The model's types.
    """

    def __init__(self, types: TypeTable) -> None:
        self._types = types
        self._front = self._behind = no_nodes()
        self._operand_node: np.ndarray | None = None
        self._ready = np.zeros(0, np.int32)  # nodes behind that can run, by type
        self._in_parts = False  # whether an instance's nodes may stand apart in front

    def __len__(self) -> int:
        return len(self._front) + len(self._behind)

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
        if self._front:
            self._set_behind(join_nodes(self._behind, self._front, self._types))
        self._front, self._operand_node, self._in_parts = new, None, False
        return new

    def merge(self) -> int:
        """Moves all nodes to the front.

        Returns:
            By how much the numbers of nodes in front have grown.
        """
        moved = len(self._behind)
        if moved:
            self._front = join_nodes(self._behind, self._front, self._types)
            self._set_behind(no_nodes())
            self._operand_node, self._in_parts = None, True
        return moved

    def _set_behind(self, found: RecordedNodes) -> None:
        self._behind = found
        if found:
            self._ready = count_ready(
                found.nodes, self._types.counts[2], len(self._types)
            )

    def needed_for(self, values: np.ndarray, rows: ValueRows) -> np.ndarray:
        """Finds the nodes that have to run before values are there, and merges them.

        Args:
            values: Numbers of values; ``[n] int64``.
            rows: Which values have rows.

        Returns:
            The nodes, those of an instance together and in the order in which they were
            recorded; ``[m] int32``.
        """
        needed = self._needed_in_front(values)
        if self._behind:
            table = rows.tables()[0]
            if reads_others(self.nodes, needed, values, rows.first, table):
                self.merge()
                needed = self._needed_in_front(values)
        if needed.all():
            return self.all()
        return self._by_instance(np.flatnonzero(needed))

    def _needed_in_front(self, values: np.ndarray) -> np.ndarray:
        outputs = self._types.counts[2]
        return find_needed(self.nodes, outputs, self.operand_node, values)

    def all(self) -> np.ndarray:
        """Returns all nodes in front, those of an instance together; ``[N] int32``."""
        return self._by_instance(np.arange(len(self._front), dtype=np.int32))

    def _by_instance(self, chosen: np.ndarray) -> np.ndarray:
        if not self._in_parts:
            return chosen.astype(np.int32)
        own = np.argsort(self.nodes.owner[chosen], kind="stable")
        return chosen[own].astype(np.int32)

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
            reject_invalid(found, structure, policy)
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
        nodes = self.nodes
        node_type, owner = nodes.node_type, nodes.owner
        start, operand_node = nodes.operand_start, self.operand_node
        if len(chosen) < len(self._front) or self._in_parts:
            start, operand_node = take_slots(chosen, start, operand_node)
            renumber(operand_node, chosen, len(self._front))
            node_type, owner = node_type[chosen], owner[chosen]
        ends = np.flatnonzero(np.diff(owner, append=-1)) + 1
        return GraphStructure(
            self._types.keys,
            node_type,
            start,
            operand_node,
            np.diff(ends, prepend=0).astype(np.int32),
        )

    def with_company(self, schedule: Schedule, tables: LoopTables) -> Schedule:
        """Lets nodes that wait take the empty lanes of batches.

        Args:
            schedule: A schedule of some of the nodes, whose types have loops.
            tables: The tables of the program that runs it.

        Returns:
            The schedule with other nodes that are ready before the wave, in the last
            batch of their type.
        """
        if len(schedule.order) == len(self):
            return schedule
        room = empty_lanes(schedule.batch_start, schedule.batch_type, tables)
        if self._behind and find_company(room, schedule.batch_type, self._ready):
            schedule = replace(schedule, order=schedule.order + np.int32(self.merge()))
        order, start = take_along(
            schedule.order,
            schedule.batch_start,
            schedule.batch_type,
            self.nodes,
            self._unready(),
            room,
        )
        return replace(schedule, order=order, batch_start=start)

    def _unready(self) -> np.ndarray:
        """As `operand_node`, but not negative for operands of nodes behind, too."""
        found = self.operand_node
        if self._behind:
            outputs = self._types.counts[2]
            behind = nodes_of_values(self._behind.nodes, outputs, self.nodes.operands)
            found = np.maximum(found, behind)
        return found

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

    def remove(self, ran: np.ndarray, rows: ValueRows, *, ended: bool) -> None:
        """Removes nodes that ran, and those that nobody needs any more.

        Args:
            ran: The nodes that ran; ``[n] int32``.
            rows: Which values are in use.
            ended: Whether instances have ended since.
        """
        if len(ran) < len(self._front):
            keep = rows.are_used(self.nodes.first_value)
            keep[ran] = False
            left = self._select(self._front, keep)
            if left or ended:
                self._set_behind(join_nodes(self._behind, left, self._types))
        if ended and self._behind:
            used = rows.are_used(self._behind.nodes.first_value)
            if not used.all():
                self._set_behind(self._select(self._behind, used))
        self._front, self._operand_node = no_nodes(), None
        self._in_parts = False

    def _select(self, found: RecordedNodes, keep: np.ndarray) -> RecordedNodes:
        kept = np.flatnonzero(keep).astype(np.int32)
        return select_nodes(found, kept, self._types) if len(kept) else no_nodes()
