"""Made-up `Comparison` rows."""

from edbatch.policies import Comparison

# Keys of a row in JSON, in order.
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
    """A policy's row; unless given, its mean ratio is the ratio of the means."""
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
