"""Logs that a plan runs on one CPU device, if more devices or cores could be used.

A CPU is one device by default, the fastest choice where a loader feeds data
(docs/scaling.md, "The cores of one machine"). Users should find out that there is a
choice, or that devices stay idle, without knowing this in advance.
"""

import logging
from typing import Any

import jax

from edbatch.plan.plan import Plan
from edbatch.target import usable_cores

log = logging.getLogger("edbatch")

_DEFAULT = "jax_default_device"


class DeviceNotice:
    """A log line about a function of one device, logged at most once.

    Args:
        name: The model's name.

    Attributes:
        due: Whether the next run is to be checked; False after the first check, even if
            nothing was logged.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.due = True

    def tell(self, plan: Any, params: Any = ()) -> None:
        """Logs the choice on a CPU: WARNING of idle devices, INFO of several cores.

        Nothing is logged if the user has placed the parameters, as `jax.device_put` or
        `edbatch.choose_devices` do, or has set JAX's default device.

        Args:
            plan: The plan to run.
            params: The parameters, if available.
        """
        if not self.due or not isinstance(plan, Plan):
            return
        arrays = jax.tree.leaves((params, plan))
        if any(isinstance(each, jax.core.Tracer) for each in arrays):
            return  # only tracing; the compiled function is called later
        self.due = False
        placed = any(getattr(each, "committed", False) for each in arrays)
        chosen = placed or getattr(jax.config, _DEFAULT) is not None
        if chosen or jax.default_backend() != "cpu":
            return
        devices, cores = jax.local_device_count(), usable_cores()
        if devices > 1:
            log.warning(
                "%s runs on one of %d CPU devices, which leaves the others idle;"
                " eb.choose_devices measures whether batched.sharded(), on all of them,"
                " is faster",
                self._name,
                devices,
            )
        elif cores > 1:
            log.info(
                "%s runs on one CPU device, whose wide operations XLA spreads over %d"
                " cores; after eb.use_cpu_devices(), eb.choose_devices measures whether"
                " a device for each core is faster",
                self._name,
                cores,
            )
