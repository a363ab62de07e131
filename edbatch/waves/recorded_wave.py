"""What a wave was recorded as: a dataflow graph that goes on where others ended."""

from typing import NamedTuple

import numpy as np

from edbatch.graph.dataflow_graph import NodeArrays, operand_nodes, slot_starts
from edbatch.graph.structure import GraphStructure
from edbatch.graph.tape import Tape
from edbatch.graph.type_table import TypeTable
from edbatch.schedule.policy import Policy, needs_check, reject_invalid
from edbatch.schedule.schedule import Schedule


class RecordedWave(NamedTuple):
    """The nodes of a wave.

    Attributes:
        nodes: Its nodes; values that they read are counted over all waves, those that
            they compute within this one.
        pools: Its external inputs, by array kind.
        instance_nodes: How many nodes stand together, of one instance each.
    """

    nodes: NodeArrays
    pools: dict[int, np.ndarray]
    instance_nodes: np.ndarray  # [B] int32

    @property
    def num_values(self) -> int:
        """Number of values that it computes."""
        return int(self.nodes.value_start[-1])


def take_tape(tape: Tape, instance_nodes: list[int]) -> RecordedWave:
    """Takes what was recorded off a tape.

    Args:
        tape: The tape; it is empty then.
        instance_nodes: Nodes of each instance, in turn.

    Returns:
        The wave.
    """
    node_type = np.array(tape.node_type, np.int32)
    operand, external, value = slot_starts(node_type, *tape.types.counts)
    nodes = NodeArrays(
        node_type,
        operand,
        np.array(tape.operands, np.int64),
        external,
        np.array(tape.external_rows, np.int32),
        value,
    )
    wave = RecordedWave(nodes, tape.pools(), np.array(instance_nodes, np.int32))
    tape.clear()
    return wave


def schedule_wave(
    wave: RecordedWave, types: TypeTable, policy: Policy, first_value: int
) -> Schedule:
    """Schedules a wave.

    Args:
        wave: The wave.
        types: The model's types.
        policy: The policy.
        first_value: Number of the wave's first value; those before it are there.

    Returns:
        The schedule.

    Raises:
        PolicyError: The policy belongs to another model, or its schedule is invalid.
    """
    nodes = wave.nodes
    if not len(nodes.node_type):
        nothing = np.zeros(0, np.int32)
        return Schedule(nothing, np.zeros(1, np.int32), nothing)
    # Values of earlier waves are like operands that a padded list lacks.
    own = np.maximum(nodes.operands - first_value, -1).astype(np.int32)
    structure = GraphStructure(
        types.keys,
        nodes.node_type,
        nodes.operand_start,
        operand_nodes(nodes.value_start, own),
        wave.instance_nodes,
    )
    schedule = policy.schedule(structure)
    if needs_check(policy):
        reject_invalid(schedule, structure, policy)
    return schedule
