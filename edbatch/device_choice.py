"""One device or all of them, whichever runs a model faster.

Two cores as two devices run the narrow operations of trees side by side, which XLA
leaves to one core; products that are wide enough it spreads over all cores by itself,
and then devices gain nothing but cost the sum of their gradients. Where that turns
depends on the model, its widths and the machine, so it is measured.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from edbatch.arguments import check_flag, list_of
from edbatch.batched import Batched
from edbatch.batched_function import BatchedFunction
from edbatch.errors import EdbatchError, PlanError
from edbatch.measuring import loss_of, side_by_side
from edbatch.sharding.devices import all_devices

log = logging.getLogger("edbatch")

_ROUNDS = 15
_MOST_MS = 2000.0  # after three rounds no more begin when so much time has passed


class DeviceChoice(NamedTuple):
    """On how many devices a model runs, and why.

    Attributes:
        function: The function to use: the one given, or it on all devices.
        params: The parameters, where the function finds them without a copy.
        devices: How many devices it runs on.
        milliseconds: The measured time of the sample by number of devices, medians;
            empty where there was nothing to choose.

    Example:
        >>> import edbatch as eb
        >>> batched = eb.batch(eb.cell(lambda params, x: params * x))
        >>> chosen = eb.DeviceChoice(batched, 2.0, devices=1, milliseconds={})
        >>> chosen.function(chosen.params, [1.0, 5.0]).tolist()
        [2.0, 10.0]
    """

    function: BatchedFunction
    params: Any
    devices: int
    milliseconds: dict[int, float]

    def __repr__(self) -> str:
        """Says on how many devices, and what was measured."""
        times = "".join(f", {ms:.2f} ms on {n}" for n, ms in self.milliseconds.items())
        known = max(self.milliseconds, default=1)
        return f"DeviceChoice({self.devices} of {known} devices{times})"


def choose_devices(
    batched: Batched,
    params: Any,
    sample: Iterable[Any],
    *,
    gradient: bool = True,
    mesh: Mesh | None = None,
) -> DeviceChoice:
    """Measures a model on one device and on all, and takes the faster way.

    Both run the sample as one minibatch, compiled, its plan on the device, taking
    turns. A line at level INFO of the logger ``edbatch`` tells both times.

    Args:
        batched: The function, of `edbatch.batch`.
        params: The model's parameters.
        sample: A minibatch as those to come.
        gradient: Whether to measure the loss's value and its gradient by the
            parameters, as in training, or the forward pass.
        mesh: The devices; all of ``jax.devices()`` if None. Cores become devices by
            `use_cpu_devices`.

    Returns:
        The function, its parameters in place, and the times.

    Raises:
        EdbatchError: The function is no `Batched`, or the sample is empty or cannot be
            run.

    Example:
        >>> import edbatch as eb
        >>> import jax.numpy as jnp
        >>> @eb.cell
        ... def twice(params, x):
        ...     return params * x
        >>> batched = eb.batch(twice)
        >>> chosen = choose_devices(batched, jnp.float32(2), [1.0, 5.0, 3.0])
        >>> chosen.function(chosen.params, [1.0, 5.0, 3.0]).tolist()
        [2.0, 10.0, 6.0]
    """
    if not isinstance(batched, Batched):
        raise EdbatchError(
            "choose_devices takes a function made by eb.batch, for one device, but"
            f" received {type(batched).__name__}"
        )
    check_flag(EdbatchError, "gradient of choose_devices", gradient)
    instances = list_of(PlanError, "the sample of choose_devices", sample)
    if not instances:
        raise PlanError(
            "choose_devices measures a minibatch, so its sample needs at least one"
            " instance"
        )
    mesh = all_devices() if mesh is None else mesh
    count = mesh.size
    if count == 1:
        return DeviceChoice(batched, params, 1, {})
    sharded = batched.sharded(mesh)
    one = jax.device_put(params, mesh.devices.flat[0])
    several = sharded.replicate(params)
    recordings = batched.record_all(instances, params=params)
    runs = [
        _run_of(batched, one, recordings, gradient),
        _run_of(sharded, several, recordings, gradient),
    ]
    times = side_by_side(runs, _ROUNDS, _MOST_MS)
    on_one, on_all = np.median(times, axis=1).tolist()
    faster = on_all < on_one
    devices = count if faster else 1
    what = "value and gradient" if gradient else "forward"
    log.info(
        "%s of %d instances: %.2f ms on 1 device, %.2f ms on %d; using %d",
        what,
        len(instances),
        on_one,
        on_all,
        count,
        devices,
    )
    function: BatchedFunction = sharded if faster else batched
    own = several if faster else one
    return DeviceChoice(function, own, devices, {1: on_one, count: on_all})


def _run_of(
    function: BatchedFunction, params: Any, recordings: Sequence[Any], gradient: bool
) -> Callable[[], Any]:
    """A call of the compiled program of a minibatch."""
    plan = function.plan(recordings)
    if isinstance(function, Batched):
        plan = jax.device_put(plan, next(iter(jax.tree.leaves(params)[0].devices())))
    if not gradient:
        forward = jax.jit(function.apply)
        return lambda: forward(params, plan)

    step = jax.jit(jax.value_and_grad(loss_of(function)))
    return lambda: step(params, plan)
