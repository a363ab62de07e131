"""Draws the minibatches to measure, and similar ones to train a policy on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import edbatch as eb
from edbatch.benchmark.config import TRAINING, BenchmarkConfig
from edbatch.errors import BenchmarkError
from edbatch.models import Workload, get_workload
from edbatch.policies import Greedy, train_policy
from edbatch.schedule import Policy


@dataclass(frozen=True)
class MeasuredModel:
    """A model to measure, with its parameters and instances.

    Attributes:
        name: Its name in results.
        function: The model for one instance, ``function(params, instance)``.
        params: Its parameters.
        instances: The instances to draw minibatches from, at least one.

    Example:
        >>> scale = eb.cell(lambda params, x: params * x)
        >>> model = MeasuredModel("scale", scale, np.float32(3), [np.float32(2)])
        >>> config = BenchmarkConfig(
        ...     hidden=None, batch_size=2, minibatches=1, rounds=1, policy="greedy",
        ...     systems=("edbatch", "unbatched"),
        ... )
        >>> from edbatch.benchmark import run_benchmark
        >>> [row.system for row in run_benchmark(config, model=model).rows]
        ['edbatch', 'unbatched']
    """

    name: str
    function: Callable[[Any, Any], Any]
    params: Any
    instances: Sequence[Any]


@dataclass(frozen=True)
class Minibatches:
    """Minibatches of instances.

    Attributes:
        measured: The minibatches to measure.
        training: The minibatches to train a policy on. They share no instance with the
            measured ones unless there are too few instances.
    """

    measured: list[list[Any]]
    training: list[list[Any]]


def ready_model(config: BenchmarkConfig, rng: np.random.Generator) -> MeasuredModel:
    """Loads the ready workload that a configuration names.

    Args:
        config: The workload, its options and data.
        rng: Samples the instances if the configuration has no data.

    Returns:
        The model with random parameters.

    Raises:
        BenchmarkError: The configuration has no hidden size.
        DataError: A file is missing or malformed.
        ModelError: There is no such workload, or option.
    """
    if config.hidden is None:
        raise BenchmarkError(
            f"the workload {config.workload!r} needs the length of its states; give"
            " hidden, such as 128"
        )
    workload = get_workload(config.workload, **config.options)
    if config.data:
        instances: Sequence[Any] = workload.read(list(config.data))
    else:
        instances = workload.sample(rng, config.most_instances)
    params = random_params(workload, config.hidden, config.seed)
    return MeasuredModel(workload.name, workload.model, params, instances)


def draw_minibatches(
    instances: Sequence[Any], config: BenchmarkConfig, rng: np.random.Generator
) -> Minibatches:
    """Draws minibatches.

    Args:
        instances: The instances to draw from, at least one.
        config: The number of minibatches and their size.
        rng: Shuffles the instances.

    Returns:
        The minibatches. The measured ones are disjoint if there are enough instances.
    """
    wanted = config.batch_size * config.minibatches
    order = rng.permutation(len(instances)).tolist()
    measured = [
        [instances[order[(first + k) % len(order)]] for k in range(config.batch_size)]
        for first in range(0, wanted, config.batch_size)
    ]
    rest = order[wanted:] or order
    training = [
        [instances[k] for k in rng.choice(rest, config.batch_size)]
        for _ in range(TRAINING if config.trains else 0)
    ]
    return Minibatches(measured, training)


def choose_policy(
    model: MeasuredModel, config: BenchmarkConfig, training: list[list[Any]]
) -> tuple[Policy, str]:
    """Loads the configured policy, or trains one.

    Args:
        model: The model.
        config: The configuration; a policy of None means to train one.
        training: Minibatches to train on.

    Returns:
        The policy, and a description of it for the result.

    Raises:
        PolicyError: There is no such policy.
        KeyboardInterrupt: Ctrl-C was pressed during training.
    """
    if config.policy is not None:
        policy = eb.get_policy(config.policy)
        return policy, f"{policy.name}, as asked for by --policy {config.policy}"
    if not config.trains:
        return Greedy(), "none, because no row uses it"
    batched = eb.batch(model.function, "greedy", params=model.params)
    graphs = [batched.graph(each).structure for each in training]
    judged = len(graphs) // 3
    machine = train_policy(
        graphs[judged:],
        graphs[:judged],
        seed=config.seed,
        workload=model.name,
        if_needed=True,
    )
    record = machine.training
    assert record is not None, "a machine that was just trained has a record"
    if record.stopped == "interrupted":  # Ctrl-C interrupts the benchmark, too
        raise KeyboardInterrupt
    if record.stopped == "greedy":
        return machine, "greedy, which already meets the bound on every minibatch"
    if record.worse_than_greedy:
        return machine, (
            "greedy, because the policy trained on the spot was never as good"
        )
    found = f"{record.held_out_batches:.2f} batches on held-out minibatches"
    return machine, (
        f"trained on the spot: {len(machine.states)} states, {found}, lower bound"
        f" {record.held_out_lower_bound:.2f}"
    )


def with_arrays(params: Any, seed: int) -> Any:
    """Fills parameters given only as shapes with small random numbers.

    Args:
        params: A pytree of arrays and shapes, as returned by `jax.eval_shape`.
        seed: Seed of the random numbers; integer parameters are 0.

    Returns:
        The parameters; existing arrays are unchanged.

    Example:
        >>> shapes = {"scale": jax.ShapeDtypeStruct((3,), np.float32), "bias": 0.0}
        >>> found = with_arrays(shapes, seed=0)
        >>> found["scale"].shape, found["bias"]
        ((3,), 0.0)
    """
    leaves, treedef = jax.tree.flatten(params)
    if not any(isinstance(each, jax.ShapeDtypeStruct) for each in leaves):
        return params
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    return jax.tree.unflatten(
        treedef, [_as_array(each, key) for each, key in zip(leaves, keys, strict=True)]
    )


def _as_array(leaf: Any, key: jax.Array) -> Any:
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    if jnp.issubdtype(leaf.dtype, jnp.inexact):
        return 0.1 * jax.random.normal(key, leaf.shape, leaf.dtype)
    return jnp.zeros(leaf.shape, leaf.dtype)


def random_params(workload: Workload, hidden: int, seed: int) -> Any:
    """Samples parameters without arrays of zeros.

    Args:
        workload: The workload.
        hidden: Length of its states.
        seed: Seed of the random numbers.

    Returns:
        The workload's own well-scaled parameters. Those initialized to zero, such as
        biases, get small random numbers, because zeros hide errors and distort timing.
    """
    first, second = jax.random.split(jax.random.key(seed))
    leaves, treedef = jax.tree.flatten(workload.init_params(first, hidden))
    keys = jax.random.split(second, len(leaves))
    filled = [
        0.1 * jax.random.normal(key, leaf.shape, leaf.dtype)
        if jnp.issubdtype(leaf.dtype, jnp.floating) and not leaf.any()
        else leaf
        for leaf, key in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(treedef, filled)
