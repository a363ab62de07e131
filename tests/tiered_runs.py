"""Losses that note which tier of a program runs."""

import jax
from trees import make_params

import edbatch as eb
from edbatch.compilation.settings import REFINE_AFTER

PARAMS = make_params()


def loss_of(batched, seen):
    def loss(params, plan):
        parts = jax.tree.leaves(plan, is_leaf=lambda each: hasattr(each, "shape"))
        seen.append(tier_of(parts[0]))
        hidden, _ = batched.apply(params, plan)
        return (hidden**2).sum()

    return loss


def tier_of(plan):
    program = getattr(plan, "shards", plan).shape.program
    return program.options.tier


def run_until_fine(function, *args):
    """Calls until the fine program is swapped in; the results of both tiers."""
    coarse = [function(*args) for _ in range(REFINE_AFTER)]
    assert eb.wait_for_compilations(120)
    return coarse, function(*args)


def records_of(name):
    return [each for each in eb.compile_report() if each.function == name]
