"""Rows of comparisons, made up."""

from dataclasses import fields, replace

from edbatch.policies import Comparison, Depth, compare
from edbatch.schedule.examples import chain


def row(policy: str, batches: float, bound: float, worst: float) -> Comparison:
    """A row of a policy; its mean ratio is that of the means."""
    [some] = compare([Depth()], [chain("a")])
    values = {
        "policy": policy,
        "mean_batches": batches,
        "mean_lower_bound": bound,
        "worst_ratio": worst,
        "mean_ratio": batches / bound,
    }
    known = {field.name for field in fields(Comparison)}
    return replace(some, **{name: values[name] for name in values if name in known})
