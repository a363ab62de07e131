"""Counts of rows, loops and chunks of a sharded plan."""

from dataclasses import dataclass

from edbatch.plan.report import PlanReport


@dataclass(frozen=True)
class ShardedReport:
    """Counts of one sharded plan over ``D`` devices.

    Attributes:
        shards: The report of each device's plan; None for devices without instances.
        instances: Number of instances of each device.
        work: Predicted work of each device: microseconds if costs were given, otherwise
            nodes.
        plan_ms: Time to schedule and to lay out all shards.

    Example:
        >>> report = ShardedReport((None, None), (3, 5), (60.0, 40.0), 0.5)
        >>> report.imbalance
        1.2
    """

    shards: tuple[PlanReport | None, ...]
    instances: tuple[int, ...]
    work: tuple[float, ...]
    plan_ms: float

    @property
    def nodes(self) -> int:
        """Nodes of the minibatch."""
        return sum(each.nodes for each in self.shards if each is not None)

    @property
    def batches(self) -> int:
        """Batches of the device with the most batches; devices run in parallel."""
        return max(each.batches for each in self.shards if each is not None)

    @property
    def imbalance(self) -> float:
        """Work of the busiest device relative to the mean; 1 is perfect."""
        return max(self.work) * len(self.work) / sum(self.work)
