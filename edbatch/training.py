"""Training loop: Optax optimizer steps over the minibatches of `edbatch.Loader`.

Each step is checked only after the next one has been dispatched, so the device is never
idle. The expensive host work, recording and planning, runs in the loader's threads.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from edbatch import sparse
from edbatch.arguments import check_type
from edbatch.compilation.jit import jit
from edbatch.errors import TrainingError, shown
from edbatch.graph.parameter_structure import abstract
from edbatch.loader import Minibatch
from edbatch.memory_planner.layout import ZERO_ROW
from edbatch.plan import Plan

Loss = Callable[[Any, Plan, Any], Array]


class Learned(NamedTuple):
    """The values that a training step updates.

    Attributes:
        params: The parameters.
        optimizer_state: The state of the optimizer.
    """

    params: Any
    optimizer_state: Any


class _Begun(NamedTuple):
    """A dispatched step, which the device may still be computing."""

    minibatch: Minibatch
    loss: Array
    is_finite: Array


class Trainer:
    """Trains parameters, one minibatch per step.

    Args:
        loss: ``loss(params, plan, targets)``, a number to minimise; traced by JAX. It
            must ignore padding rows (``plan.instance_mask``), which the last minibatch
            of an epoch may have. The first minibatch with padding is used to check
            this.
        optimizer: An Optax optimizer, or ``optax.MultiSteps``. It receives the loss as
            ``value``. An optimizer that requires ``value_fn``, such as `optax.lbfgs`,
            also receives the gradient and the loss function of the minibatch.
        params: The parameters before the first step.
        targets: ``[N, ...]``, a row per instance of the loader's data; ``loss`` gets
            the rows of its minibatch, one for each row of the result. None if the
            instances hold their targets: ``loss`` then gets None.
        tables: Parameters with sparse gradients, as for
            `edbatch.sparse.value_and_grad`; None for dense gradients only.

    Attributes:
        learned: Parameters and optimizer state after the last step. To resume from a
            checkpoint, assign a `Learned` before the first step.
        losses: The loss of each checked step.

    Raises:
        TrainingError: The loss, optimizer, parameters or targets are invalid.

    Example:
        >>> import edbatch as eb
        >>> @eb.cell
        ... def start(params):
        ...     return jnp.zeros_like(params["scale"])
        >>> @eb.cell
        ... def add(params, total, x):
        ...     return total + params["scale"] * x
        >>> def model(params, numbers):
        ...     total = start(params)
        ...     for x in numbers:
        ...         total = add(params, total, x)
        ...     return total
        >>> params = {"scale": jnp.float32(0)}
        >>> batched = eb.batch(model, params=params)
        >>> def loss(params, plan, targets):
        ...     errors = (batched.apply(params, plan) - targets) ** 2
        ...     return jnp.mean(errors, where=plan.instance_mask)
        >>> data, targets = [[1.0], [1.0, 2.0]], np.float32([2, 6])
        >>> trainer = Trainer(loss, optax.sgd(0.05), params, targets)
        >>> for minibatch in eb.Loader(batched, data, 2).epochs(20):
        ...     trainer.step(minibatch)
        >>> round(float(trainer.finish().params["scale"]), 3)
        2.0
    """

    def __init__(
        self,
        loss: Loss,
        optimizer: optax.GradientTransformation | optax.MultiSteps,
        params: Any,
        targets: np.ndarray | None = None,
        tables: sparse.Paths | None = None,
    ) -> None:
        if not callable(loss):
            raise TrainingError(
                "a loss is a function loss(params, plan, targets) but this is"
                f" {loss!r}; pass the function itself"
            )
        if isinstance(optimizer, optax.MultiSteps):
            optimizer = optax.GradientTransformationExtraArgs(
                optimizer.init, optimizer.update
            )
        check_type(
            TrainingError,
            "the optimizer of a Trainer",
            optimizer,
            optax.GradientTransformation,
            "a GradientTransformation of Optax",
        )
        if targets is not None and not isinstance(targets, np.ndarray | Array):
            raise TrainingError(
                "targets of a Trainer are an array with a row for each instance but"
                f" this is a {type(targets).__name__}; make an array of it with"
                " np.asarray, or let instances hold their targets"
            )
        if targets is not None and not targets.ndim:
            raise TrainingError(
                "targets of a Trainer are an array with a row for each instance but"
                f" this is the single number {shown(targets.item())}; let a loss that"
                " has the same target for all hold it itself"
            )
        _check_differentiable(params)
        self.learned = Learned(params, optimizer.init(params))
        self.losses: list[float] = []
        value_and_grad = (
            jax.value_and_grad(loss)
            if tables is None
            else sparse.value_and_grad(loss, tables)
        )
        self._update = jit(partial(_update, loss, value_and_grad, optimizer))
        self._targets = targets
        self._begun: _Begun | None = None
        self._checked_padding = False

    def step(self, minibatch: Minibatch) -> None:
        """Dispatches a step, then checks the previous one.

        Args:
            minibatch: A minibatch of an `edbatch.Loader`.

        Raises:
            TrainingError: The loss or parameters of the previous step are not finite;
                `learned` is the result of that step. Or the loss depends on padding
                rows, an instance has no target, or the minibatch or `learned` has a
                wrong type.
        """
        check_type(
            TrainingError,
            "the minibatch of a step of a Trainer",
            minibatch,
            Minibatch,
            "a Minibatch of eb.Loader, which holds a plan",
        )
        check_type(
            TrainingError,
            "what is learned, in a Trainer",
            self.learned,
            Learned,
            "edbatch.training.Learned(params, optimizer_state)",
        )
        targets = self._targets
        if targets is not None:
            index = minibatch.padded_index
            if index.max() >= len(targets):  # JAX would take the last row
                raise TrainingError(
                    f"targets of a Trainer have {len(targets)} rows but the loader has"
                    f" an instance {index.max()}; give one row for each instance"
                )
            targets = targets[index]
        if not self._checked_padding and not np.all(minibatch.mask):
            self._check_padding(minibatch.plan, targets)
        learned, loss, is_finite = self._update(self.learned, minibatch.plan, targets)
        self.finish()
        self.learned = learned
        self._begun = _Begun(minibatch, loss, is_finite)

    def _check_padding(self, plan: Plan, targets: Any) -> None:
        """Checks that the loss stays the same when padding rows have other results."""
        other = replace(plan, rows=jax.tree.map(_first_row_as_padding, plan.rows))
        one, two = (
            float(self._update(self.learned, each, targets)[1])
            for each in (plan, other)
        )
        if not np.isclose(one, two, rtol=1e-5, atol=0, equal_nan=True):
            raise TrainingError(
                "the loss of a minibatch must not depend on its rows of padding, which"
                " plan.instance_mask tells from instances, but it changed from"
                f" {one} to {two} when they did; write for"
                " example jnp.mean(losses, where=plan.instance_mask), or give the"
                " loader pad=False"
            )
        self._checked_padding = True

    def finish(self) -> Learned:
        """Waits for the last step, and checks it.

        Returns:
            `learned`.

        Raises:
            TrainingError: Its loss or parameters are not finite.
        """
        if self._begun is not None:
            begun, self._begun = self._begun, None
            if not begun.is_finite:
                raise TrainingError(
                    "a step must leave loss and parameters finite, but the loss is"
                    f" {float(begun.loss)} at step {begun.minibatch.step} of epoch"
                    f" {begun.minibatch.epoch}, instances"
                    f" {begun.minibatch.index.tolist()}; usually the learning rate is"
                    " too large; reduce it"
                )
            self.losses.append(float(begun.loss))
        return self.learned


def _check_differentiable(params: Any) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(abstract(params)):
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            raise TrainingError(
                "the parameters of a Trainer are floating point or complex numbers but"
                f" params{jax.tree_util.keystr(path)} has the dtype {leaf.dtype}, of"
                " which there is no gradient; let the loss or the model hold it instead"
            )


def _first_row_as_padding(rows: Any) -> Any:
    """Makes padding rows, which read zeros, read the first instance's result."""
    numbers = np if isinstance(rows, np.ndarray) else jnp
    return numbers.where(rows == ZERO_ROW, rows[:1], rows)


def _update(
    loss: Loss,
    value_and_grad: Callable[..., tuple[Array, Any]],
    optimizer: optax.GradientTransformation,
    learned: Learned,
    plan: Plan,
    targets: Any,
) -> tuple[Learned, Array, Array]:
    """Computes a step: its result, the loss, and whether all numbers are finite."""
    value, gradient = value_and_grad(learned.params, plan, targets)
    before = learned.optimizer_state, learned.params
    try:
        params, state = sparse.update(optimizer, gradient, *before, value=value)
    except TypeError as error:
        if "value_fn" not in str(error):
            raise
        params, state = sparse.update(  # it uses a line search, as optax.lbfgs does
            optimizer,
            gradient,
            *before,
            value=value,
            grad=gradient,
            value_fn=lambda params: loss(params, plan, targets),
        )
    parts = [
        jnp.isfinite(each).all()
        for each in (value, *jax.tree.leaves(params))
        if jnp.issubdtype(jnp.result_type(each), jnp.inexact)
    ]
    is_finite = jnp.stack(parts).all()
    return Learned(params, state), value, is_finite
