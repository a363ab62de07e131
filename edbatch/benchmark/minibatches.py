"""The minibatches that are measured, and others of their kind to train a policy on."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import edbatch as eb
from edbatch.benchmark.config import BenchmarkConfig
from edbatch.models import Workload
from edbatch.policies import Greedy, train_policy
from edbatch.schedule import Policy

_TRAINING = 12  # minibatches to train on, a third of them held out


@dataclass(frozen=True)
class Minibatches:
    """Minibatches of instances.

    Attributes:
        measured: Those to measure.
        training: Those to train a policy on; they share no instance with the measured
            ones unless there are too few.
    """

    measured: list[list[Any]]
    training: list[list[Any]]


def draw_minibatches(workload: Workload, config: BenchmarkConfig) -> Minibatches:
    """Draws minibatches.

    Args:
        workload: The workload.
        config: How many, how large, and from which data.

    Returns:
        The minibatches. No instance is in two measured ones as long as there are
        enough.

    Raises:
        DataError: A file is missing or malformed.
    """
    rng = np.random.default_rng(config.seed)
    wanted = config.batch_size * config.minibatches
    spare = config.batch_size * _TRAINING if config.trains else 0
    if config.data:
        instances = workload.read(list(config.data))
    else:
        instances = workload.sample(rng, wanted + spare)
    assert instances, "readers reject data without an instance"
    order = rng.permutation(len(instances)).tolist()
    measured = [
        [instances[order[(first + k) % len(order)]] for k in range(config.batch_size)]
        for first in range(0, wanted, config.batch_size)
    ]
    rest = order[wanted:] or order
    training = [
        [instances[k] for k in rng.choice(rest, config.batch_size)]
        for _ in range(_TRAINING if spare else 0)
    ]
    return Minibatches(measured, training)


def choose_policy(
    workload: Workload, params: Any, config: BenchmarkConfig, training: list[list[Any]]
) -> tuple[Policy, str]:
    """Loads the policy that was asked for, or trains one.

    Returns:
        The policy, and what it is, for the reader of the result.

    Raises:
        PolicyError: There is no such policy.
    """
    if config.policy is not None:
        policy = eb.get_policy(config.policy)
        return policy, f"{policy.name}, as asked for by --policy {config.policy}"
    if not config.trains:
        return Greedy(), "none, as no row is of it"
    batched = eb.batch(workload.model, "greedy", params=params)
    graphs = [batched.graph(each).structure for each in training]
    judged = len(graphs) // 3
    machine = train_policy(
        graphs[judged:],
        graphs[:judged],
        seed=config.seed,
        workload=workload.name,
        if_needed=True,
    )
    record = machine.training
    assert record is not None, "a machine that was just trained has a record"
    if record.stopped == "greedy":
        return machine, "greedy, which already meets the bound on every minibatch"
    if record.worse_than_greedy:
        return machine, "trained on the spot, but never as good as greedy, so that"
    found = f"{record.held_out_batches:.2f} batches on held-out minibatches"
    return machine, (
        f"trained on the spot: {len(machine.states)} states, {found}, lower bound"
        f" {record.held_out_lower_bound:.2f}"
    )


def random_params(workload: Workload, config: BenchmarkConfig) -> Any:
    """Samples parameters of which none is zero.

    Returns:
        The workload's own well-scaled parameters, with small random numbers where they
        start at zero, as biases do: time and errors on zeros say little.
    """
    first, second = jax.random.split(jax.random.key(config.seed))
    leaves, treedef = jax.tree.flatten(workload.init_params(first, config.hidden))
    keys = jax.random.split(second, len(leaves))
    filled = [
        0.1 * jax.random.normal(key, leaf.shape, leaf.dtype)
        if jnp.issubdtype(leaf.dtype, jnp.floating) and not leaf.any()
        else leaf
        for leaf, key in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(treedef, filled)
