"""Plans on their way to the device, ahead of the step that runs them."""

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
        plan: A plan; one for several devices lies there already.

    Returns:
        The same plan of arrays of JAX, which are not waited for. They are committed to
        no device, so the parameters of a call decide where it runs, as ever. The plan
        itself if it is for a device that reads the memory of the host.
    """
    if not isinstance(plan, Plan) or not plan.shape.program.options.target.own_memory:
        return plan
    return replace(jax.device_put(plan), report=plan.report)


@dataclass(frozen=True)
class Settings:
    """Settings of JAX in the thread of a loop, whose other threads plan.

    Attributes:
        x64: Whether ``jax.enable_x64`` is on.
        device: ``jax.default_device``, by which plans are made and where they go.
    """

    x64: bool
    device: Any = None

    def here(self) -> Self:
        """Returns these settings with the default device of this thread."""
        return replace(self, device=getattr(jax.config, _DEFAULT))

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Has them hold in this thread, where contexts of another do not."""
        with jax.enable_x64(self.x64), jax.default_device(self.device):
            yield
