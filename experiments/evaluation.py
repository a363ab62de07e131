"""Losses and evaluation of models on data sets, shared by the training scripts.

The scripts in this folder train with `training.py` and evaluate the trained models with
this module.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import edbatch as eb

# Few widths and some headroom, because the program of a gradient compiles slowly.
SIZES = eb.Sizes(widths=(8, 32, 128), headroom=2.0)


@eb.cell
def judge_label(logits: Array, label: Array) -> dict[str, Array]:
    """Returns a label's cross-entropy, and whether it is the likeliest, as 1 or 0."""
    return {
        "loss": -jax.nn.log_softmax(logits)[label],
        "right": (jnp.argmax(logits) == label).astype(jnp.float32),
    }


def mean_loss(judged: eb.Ragged) -> Array:
    """Averages the losses of all labels of a minibatch."""
    losses = jnp.where(judged.mask, judged.values["loss"], 0.0)
    return jnp.sum(losses) / jnp.sum(judged.lengths)


def loss_of_labels(batched: eb.Batched) -> Callable[[Any, eb.Plan, None], Array]:
    """Makes the loss function of a model that returns results of `judge_label`."""

    def loss(params: Any, plan: eb.Plan, _: None) -> Array:
        return mean_loss(batched.apply(params, plan))

    return loss


def set_apart(count: int, seed: int) -> tuple[list[int], list[int]]:
    """Sets a tenth of the instances apart, at least one.

    Args:
        count: Number of instances.
        seed: Seed of the random choice.

    Returns:
        The indices of the other instances, and of those set apart.
    """
    order = np.random.default_rng(seed).permutation(count).tolist()
    held_out = max(1, count // 10)
    return order[held_out:], order[:held_out]


def run_all(
    batched: eb.Batched, recordings: Sequence[Any], batch_size: int
) -> Callable[[Any], list[tuple[np.ndarray, Any]]]:
    """Makes a function that runs a model on a data set, in the order of the data.

    Args:
        batched: The batched model.
        recordings: The instances.
        batch_size: Instances per minibatch.

    Returns:
        A function of parameters that returns, for each minibatch, the indices of its
        instances and their results, as NumPy arrays.
    """
    size = min(batch_size, len(recordings))
    loader = eb.Loader(batched, recordings, size, shuffle=False)
    return lambda params: [
        (
            item.index,
            jax.device_get(item.drop_padding(batched.apply(params, item.plan))),
        )
        for item in loader
    ]


def make_decoder(
    batched: eb.Batched, names: Sequence[str], batch_size: int
) -> Callable[[Any, Iterable[Any]], list[tuple[np.ndarray, ...]]]:
    """Makes a function that decodes instances with a model that reads values.

    Args:
        batched: The batched model, which returns a dict of lists.
        names: The names of the lists to return.
        batch_size: Instances per minibatch.

    Returns:
        A function of parameters and instances that returns, for each instance, its
        lists as arrays, in the order of ``names``.
    """

    def decode(params: Any, instances: Iterable[Any]) -> list[tuple[np.ndarray, ...]]:
        rest, found = list(instances), []
        for k in range(0, len(rest), batch_size):
            lists = batched(params, rest[k : k + batch_size])
            columns = (lists[name].to_list() for name in names)
            found += zip(*columns, strict=True)
        return found

    return decode
