"""Sends plans to the device ahead of the step that runs them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self

import jax

from edbatch.plan import Plan

_DEFAULT = "jax_default_device"


def send(plan: Any) -> Any:
    """Sends a plan's arrays to JAX's default device, in one call.

    Args:
        plan: A plan; a plan for several devices is on them already.

    Returns:
        The same plan with JAX arrays; the transfer is not waited for. The arrays are
        uncommitted, so the parameters still decide where a call runs. The plan itself
        if it is for several devices, or for a device that reads the host's memory.
    """
    if not isinstance(plan, Plan) or not plan.shape.program.options.target.own_memory:
        return plan
    return replace(jax.device_put(plan), report=plan.report)


@dataclass(frozen=True)
class Settings:
    """JAX settings of a loop's thread, to be applied in the threads that plan.

    Attributes:
        x64: Whether ``jax.enable_x64`` is on.
        device: ``jax.default_device``, for which plans are made and to which they are
            sent.
    """

    x64: bool
    device: Any = None

    def here(self) -> Self:
        """Returns these settings with the default device of the current thread."""
        return replace(self, device=getattr(jax.config, _DEFAULT))

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Applies the settings, in the current thread only."""
        with jax.enable_x64(self.x64), jax.default_device(self.device):
            yield
