"""A schedule: which nodes run together, and in what order."""

from dataclasses import dataclass, field

import numpy as np

from edbatch.graph.structure import GraphStructure


@dataclass(frozen=True, eq=False)
class Schedule:
    """``S`` batches that together contain each of ``N`` nodes once.

    Attributes:
        order: Nodes in the order in which they run.
        batch_start: First position in ``order`` of each batch, and the end.
        batch_type: Type of each batch.
        policy: Name of the policy that made it.
        unseen_states: Number of batches that a learned policy chose by its fallback,
            because the state did not occur in training.

    Example:
        >>> from edbatch.policies import Greedy
        >>> from edbatch.schedule.examples import tree
        >>> schedule = Greedy().schedule(tree("((ab)cb)c"))
        >>> schedule.batch_type.tolist(), schedule.batch_start.tolist()
        ([0, 1, 2, 2], [0, 1, 3, 4, 5])
    """

    order: np.ndarray  # [N] int32
    batch_start: np.ndarray  # [S + 1] int32
    batch_type: np.ndarray  # [S] int32
    policy: str = ""
    unseen_states: int = field(default=0)

    def __repr__(self) -> str:
        """Summary in one line."""
        own = f" by {self.policy}" if self.policy else ""
        return f"<Schedule{own}: {len(self.order)} nodes, {self.num_batches} batches>"

    @property
    def num_batches(self) -> int:
        """Number of batches, S."""
        return len(self.batch_type)


def check_schedule(schedule: Schedule, structure: GraphStructure) -> None:
    """Checks that a schedule runs every node once, after all its operands.

    Args:
        schedule: The schedule.
        structure: The graph that it was made for.

    Raises:
        AssertionError: The schedule is invalid; where a node is at fault, the message
            names the first one.

    Example:
        >>> from edbatch.policies import Depth
        >>> from edbatch.schedule.examples import tree
        >>> structure = tree("(ab)c")
        >>> schedule = Depth().schedule(structure)
        >>> check_schedule(schedule, structure)  # raises where it is wrong
    """
    n = structure.num_nodes
    order = schedule.order
    assert len(order) == n, f"{len(order)} nodes are scheduled but the graph has {n}"
    known = (order >= 0) & (order < n)
    assert known.all(), f"there is no node {order[np.argmin(known)]}"
    counts = np.bincount(order, minlength=n) if n else np.zeros(0, int)
    assert (counts == 1).all(), (
        f"node {int(np.argmax(counts != 1))} does not run exactly once"
    )
    assert len(schedule.batch_start) == schedule.num_batches + 1, (
        f"{schedule.num_batches} batches have {schedule.num_batches + 1} starts, with"
        f" the end, but there are {len(schedule.batch_start)}"
    )
    sizes = np.diff(schedule.batch_start)
    assert schedule.batch_start[0] == 0, "the first batch starts at position 0"
    assert (sizes > 0).all() and sizes.sum() == n, "batches cover all positions"
    batch_of = np.empty(n, np.int64)
    batch_of[order] = np.repeat(np.arange(len(sizes)), sizes)
    wrong = structure.node_type != schedule.batch_type[batch_of]
    assert not wrong.any(), f"node {int(np.argmax(wrong))} runs in a batch of its type"
    reader = np.repeat(np.arange(n), np.diff(structure.operand_start))
    present = structure.operand_node >= 0
    reader, operand = reader[present], structure.operand_node[present]
    late = batch_of[operand] >= batch_of[reader]
    assert not late.any(), (
        f"node {reader[np.argmax(late)]} runs before its operand"
        f" {operand[np.argmax(late)]}"
    )
