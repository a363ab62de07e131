"""Rows of comparisons, made up."""

from edbatch.policies import Comparison

# Of a row as JSON, in their order.
KEYS = [
    "batch_size",
    "policy",
    "batches",
    "lower_bound",
    "mean_ratio",
    "worst_ratio",
    "unseen_states",
    "schedule_us_per_node",
]


def row(
    policy: str, batches: float, bound: float, worst: float, ratio: float | None = None
) -> Comparison:
    """A row of a policy; its mean ratio is that of the means unless given."""
    return Comparison(
        policy=policy,
        batches=(round(batches),),
        mean_batches=batches,
        mean_lower_bound=bound,
        mean_ratio=batches / bound if ratio is None else ratio,
        worst_ratio=worst,
        unseen_states=0,
        schedule_us_per_node=0.1,
    )
