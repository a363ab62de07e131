"""Episodes of training: each schedules a minibatch and updates the table."""

import numpy as np

from edbatch.graph.structure import GraphStructure
from edbatch.policies.fsm.q_learning import QTable, Rules, run_trial
from edbatch.policies.smooth_bound.remaining import chains_below
from edbatch.schedule.frontier import new_frontier


class Episode:
    """Episodes on one minibatch, with all ``num_types`` types of the model."""

    def __init__(self, structure: GraphStructure, num_types: int) -> None:
        start, consumers, _ = structure.consumers
        self._structure = structure
        self._num_types = num_types
        self._below = chains_below(structure.node_type, start, consumers, num_types)

    def play(self, table: QTable, rules: Rules, stream: np.ndarray) -> QTable:
        """Runs the minibatch once; returns the updated table."""
        structure = self._structure
        state = new_frontier(structure.node_type, *structure.consumers, self._num_types)
        nodes = structure.instance_nodes
        return run_trial(table, state, nodes, self._below, rules, stream)
