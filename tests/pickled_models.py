"""Models that tests record, plan and run in other processes."""

import pickle
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from trees import encode, make_params

import edbatch as eb

SIZES = eb.Sizes(widths=(4, 16))


@eb.cell(static=("function", "constant"))
def rescale(gain, x, function, constant):
    return function(gain * x) * (1.0 if np.isnan(constant) else constant)


@eb.cell(padded=("children",))
def total(children, mask):
    return jnp.where(mask[:, None], children, 0).sum(0)


@eb.cell
def blur(x, rng=None):
    return x if rng is None else x + 0.1 * jax.random.normal(rng, x.shape)


@eb.cell
def _renamed(x):
    return -x


negative = _renamed  # the cell has two names


@eb.cell
def leaned(weight, x):
    return jnp.tanh(weight * x) + weight


def in_listed_order(params, x):
    """Runs the layers in the order of the dict's keys."""
    for weight in params.values():
        x = leaned(weight, x)
    return x


def of_all_kinds(params, sizes):
    """A model of lists, constants, padded lists, keys, and arrays returned as is."""
    values = [np.full(3, size, np.float32) for size in sizes]
    for constant in (float("nan"), -0.0, 0.0, 2.0):
        values = [
            rescale(params["gains"][0], each, jnp.tanh, constant) for each in values
        ]
    whole = negative(blur(total(values)))
    return {"all": [(each, np.int32(k)) for k, each in enumerate(values)], "sum": whole}


def gains():
    return {"gains": [jnp.float32(1.5)]}


def record_and_plan(trees, compiler=None):
    """Makes a batched function in this process, and returns recordings and a plan."""
    batched = eb.batch(encode, "greedy", sizes=SIZES, compiler=compiler)
    batched.bind(make_params()).record((9, 9))
    kept = batched.record_all(trees)
    return kept, batched.plan(kept), batched.plan(trees)


def plan_with(batched, minibatch):
    """Plans and records with a batched function of another process."""
    return batched.plan(minibatch), [batched.record(each) for each in minibatch]


def plan_kinds(minibatch):
    return plan_with(eb.batch(of_all_kinds, params=gains(), sizes=SIZES), minibatch)


def run_from_disk(folder):
    """A program that loads recordings and has only the model."""
    folder = Path(folder)
    kept = pickle.loads((folder / "recordings").read_bytes())
    batched = eb.batch(encode, sizes=SIZES)
    result = batched(make_params(), kept)
    np.savez(folder / "result.npz", *result)


def run_exported(folder):
    """A program that runs an exported function, without making a batched function."""
    folder = Path(folder)
    plan = pickle.loads((folder / "plan").read_bytes())
    run = export.deserialize(bytearray((folder / "exported").read_bytes()))
    result, gradient = jax.value_and_grad(run.call)(make_params(), plan)
    np.savez(folder / "result.npz", result, *jax.tree.leaves(gradient))


def loss(batched, params, plan):
    hidden, memory = batched.apply(params, plan)
    return (hidden * jnp.arange(4.0)[None]).sum() + (memory**2).sum()
