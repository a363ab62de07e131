"""The minibatches that are measured, and others of their kind to train a policy on."""

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
    """A model to measure, with its parameters and instances of its input.

    Attributes:
        name: What it is called in results.
        function: The model for one instance, ``function(params, instance)``.
        params: Its parameters.
        instances: The instances from which minibatches are drawn, at least one.

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
        measured: Those to measure.
        training: Those to train a policy on; they share no instance with the measured
            ones unless there are too few.
    """

    measured: list[list[Any]]
    training: list[list[Any]]


def ready_model(config: BenchmarkConfig, rng: np.random.Generator) -> MeasuredModel:
    """Makes the ready workload that a configuration names.

    Args:
        config: The workload, its options and data.
        rng: Samples instances where there are no data.

    Raises:
        BenchmarkError: There is no hidden size.
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
        config: How many minibatches, and how large.
        rng: Shuffles the instances.

    Returns:
        The minibatches. No instance is in two measured ones as long as there are
        enough.
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
    """Loads the policy that was asked for, or trains one.

    Args:
        model: The model.
        config: Which policy, or None to train one.
        training: Minibatches to train on.

    Returns:
        The policy, and what it is, for the reader of the result.

    Raises:
        PolicyError: There is no such policy.
        KeyboardInterrupt: Ctrl-C was pressed in a training.
    """
    if config.policy is not None:
        policy = eb.get_policy(config.policy)
        return policy, f"{policy.name}, as asked for by --policy {config.policy}"
    if not config.trains:
        return Greedy(), "none, as no row is of it"
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
    if record.stopped == "interrupted":  # of the benchmark, too
        raise KeyboardInterrupt
    if record.stopped == "greedy":
        return machine, "greedy, which already meets the bound on every minibatch"
    if record.worse_than_greedy:
        return machine, "trained on the spot, but never as good as greedy, so that"
    found = f"{record.held_out_batches:.2f} batches on held-out minibatches"
    return machine, (
        f"trained on the spot: {len(machine.states)} states, {found}, lower bound"
        f" {record.held_out_lower_bound:.2f}"
    )


def with_arrays(params: Any, seed: int) -> Any:
    """Puts small random numbers where parameters are given by their shapes alone.

    Args:
        params: Parameters, or their shapes as of `jax.eval_shape`.
        seed: Decides the numbers; integers are 0.

    Returns:
        The parameters; those that are arrays stay as they are.

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
    """Samples parameters of which none is zero.

    Args:
        workload: The workload.
        hidden: Length of its states.
        seed: Decides the numbers.

    Returns:
        The workload's own well-scaled parameters, with small random numbers where they
        start at zero, as biases do: time and errors on zeros say little.
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
