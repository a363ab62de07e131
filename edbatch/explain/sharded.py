"""Costs of a minibatch that is divided among devices."""

from dataclasses import dataclass
from typing import Any

from edbatch.explain.report import Explanation


@dataclass(frozen=True, eq=False)
class ShardedExplanation:
    """Costs of a minibatch on each of ``D`` devices, which run in parallel.

    Attributes:
        shards: The report of each device's instances; None for devices without any.

    Example:
        >>> import edbatch as eb
        >>> import jax.numpy as jnp
        >>> twice = eb.batch(eb.cell(lambda params, x: params * x), params=jnp.ones(1))
        >>> twice.sharded().explain([1.0, 5.0, 3.0]).nodes
        3
    """

    shards: tuple[Explanation | None, ...]

    @property
    def nodes(self) -> int:
        """Nodes of the minibatch."""
        return sum(each.plan.nodes for each in self.shards if each is not None)

    @property
    def batches(self) -> int:
        """Batches of the device with the most batches."""
        return max(each.plan.batches for each in self.shards if each is not None)

    def to_json(self) -> dict[str, Any]:
        """Returns the reports as JSON values, null for devices without instances."""
        return {
            "nodes": self.nodes,
            "batches": self.batches,
            "shards": [each and each.to_json() for each in self.shards],
        }

    def __str__(self) -> str:
        """Returns the reports as text of 80 columns, one after the other."""
        parts = [
            f"Device {k}: {each or 'no instances'}"
            for k, each in enumerate(self.shards)
        ]
        return "\n\n".join(parts)

    def __repr__(self) -> str:
        """Summary in one line."""
        return (
            f"<ShardedExplanation of {len(self.shards)} devices: {self.nodes} nodes in"
            f" {self.batches} batches>"
        )

    def __rich__(self) -> Any:
        """Returns the reports for `rich.print`."""
        from rich.console import Group

        return Group(
            *(
                part
                for k, each in enumerate(self.shards)
                for part in (f"Device {k}", each or "no instances")
            )
        )

    def _repr_html_(self) -> str:
        """Returns the reports for notebooks."""
        return "".join(
            f"<h4>Device {k}</h4>{each._repr_html_() if each else 'no instances'}"
            for k, each in enumerate(self.shards)
        )
