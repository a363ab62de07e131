"""Measures whether a model runs faster on one device or on all of them.

With two cores as two devices, narrow operations, such as those of trees, run in
parallel; XLA alone runs each of them on one core. XLA spreads wide enough products over
all cores by itself: more devices then gain nothing, and their gradients have to be
summed. And where each minibatch is new, the remaining cores are used anyway: by the
threads that record and plan minibatches, and by a second minibatch that starts before
the first is done. Which is faster depends on the model, its widths and the machine, so
it is measured.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from edbatch.arguments import check_flag, check_number, list_of
from edbatch.batched import Batched
from edbatch.batched_function import BatchedFunction
from edbatch.errors import EdbatchError, PlanError
from edbatch.loader import Loader
from edbatch.measuring import loss_of, run_all, side_by_side
from edbatch.sharding.devices import all_devices

log = logging.getLogger("edbatch")

_ROUNDS = 15
_MOST_MS = 2000.0  # after three rounds, no round begins later than this


class DeviceChoice(NamedTuple):
    """The number of devices to run a model on, with the measured times.

    Attributes:
        function: The function to use: the given one, or its sharded version.
        params: The parameters, on the devices of the function.
        devices: How many devices the function runs on.
        milliseconds: The median time of the sample by number of devices; empty if there
            was only one device.

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
        """Number of devices and measured times, in one line."""
        times = "".join(f", {ms:.2f} ms on {n}" for n, ms in self.milliseconds.items())
        known = max(self.milliseconds, default=1)
        return f"DeviceChoice({self.devices} of {known} devices{times})"


def choose_devices(
    batched: Batched,
    params: Any,
    sample: Iterable[Any],
    *,
    gradient: bool = True,
    batch_size: int | None = None,
    mesh: Mesh | None = None,
) -> DeviceChoice:
    """Measures a model on one device and on all, and returns the faster function.

    Both variants run the sample, compiled, in turns. The logger ``edbatch`` reports
    both times at level INFO.

    Without this function, the default is that of `use_cpu_devices`: one device, however
    many there are. A function made by `edbatch.batch` logs once that there is a choice.

    Args:
        batched: A function made by `edbatch.batch`.
        params: The model's parameters.
        sample: A representative minibatch, whose plan is kept on the device; or, with
            ``batch_size``, a part of a data set.
        gradient: Whether to measure a loss and its gradient with respect to the
            parameters, as in training; otherwise the forward pass.
        batch_size: Instances per minibatch of an `edbatch.Loader`, which plans
            minibatches in a thread while others run, as in training. With it, the
            function with the highest throughput is chosen; without it, the one with the
            shortest step.
        mesh: The devices; all of ``jax.devices()`` if None. `use_cpu_devices` makes
            devices of cores.

    Returns:
        The function, its parameters in place, and the times.

    Raises:
        EdbatchError: The function is not a `Batched`, or the sample is empty or cannot
            be run.

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
    if batch_size is not None:
        name = "batch_size of choose_devices"
        check_number(EdbatchError, name, batch_size, 1, whole=True)
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
    batched.device_notice.due = False  # the log line below replaces it
    sharded = batched.sharded(mesh)
    first = mesh.devices.flat[0]
    one = jax.device_put(params, first)
    several = sharded.replicate(params)
    recordings = batched.record_all(instances, params=params)
    runs = [
        _run_of(function, own, recordings, gradient, batch_size, first)
        for function, own in ((batched, one), (sharded, several))
    ]
    times = side_by_side(runs, _ROUNDS, _MOST_MS)
    on_one, on_all = np.median(times, axis=1).tolist()
    faster = on_all < on_one
    devices = count if faster else 1
    what = "value and gradient" if gradient else "forward"
    log.info(
        "%s of %d instances%s: %.2f ms on 1 device, %.2f ms on %d; using %d",
        what,
        len(instances),
        "" if batch_size is None else f", {batch_size} a minibatch, planned again",
        on_one,
        on_all,
        count,
        devices,
    )
    function: BatchedFunction = sharded if faster else batched
    own = several if faster else one
    return DeviceChoice(function, own, devices, {1: on_one, count: on_all})


def _run_of(
    function: BatchedFunction,
    params: Any,
    recordings: Sequence[Any],
    gradient: bool,
    batch_size: int | None,
    first: jax.Device,
) -> Callable[[], Any]:
    """Returns the call to time: one minibatch, or all minibatches of a loader."""
    chosen: Callable[..., Any] = function.apply
    if gradient:  # float0 for integers among the parameters
        chosen = jax.value_and_grad(loss_of(function), allow_int=True)
    step = partial(jax.jit(chosen), params)
    if batch_size is not None:
        loader = Loader(function, recordings, batch_size)
        return lambda: run_all(step, (each.plan for each in loader))
    plan = function.plan(recordings)
    if isinstance(function, Batched):
        plan = jax.device_put(plan, first)
    return partial(step, plan)
