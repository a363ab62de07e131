"""`Minibatch`: what a loader yields, a plan and the numbers of its instances."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from edbatch.plan.padding import first_rows


@dataclass(frozen=True, eq=False)
class Minibatch:
    """A minibatch that is ready to run.

    Attributes:
        plan: Its plan, for ``batched.apply``; its arrays are on the device already if
            that has its own memory. The result has ``N`` rows: the loader's
            ``batch_size``, if the loader pads.
        index: Numbers of its instances, ``[B] int64``; B may be less than N in the last
            minibatch of an epoch.
        epoch: Number of its epoch, from 0.
        step: Its position in the epoch, from 0.

    Example:
        >>> import edbatch as eb
        >>> @eb.cell
        ... def double(params, x):
        ...     return params * x
        >>> batched = eb.batch(double, params=2.0)
        >>> loader = eb.Loader(batched, [1.0, 2.0, 3.0], 2, shuffle=False)
        >>> minibatch = next(iter(loader))
        >>> minibatch.index.tolist(), minibatch.epoch, minibatch.step
        ([0, 1], 0, 0)
    """

    plan: Any
    index: np.ndarray
    epoch: int
    step: int

    def __repr__(self) -> str:
        """Returns a one-line summary."""
        count = len(self.index)
        return f"<Minibatch {self.step} of epoch {self.epoch}: {count} instances>"

    @property
    def mask(self) -> np.ndarray:
        """True for instances, False for padding rows; ``[N] bool``, on the host."""
        return np.arange(self.plan.shape.result.instances) < len(self.index)

    @property
    def padded_index(self) -> np.ndarray:
        """Instance number of each row of the result; ``[N] int64``.

        ``targets[padded_index]`` are the targets of all rows. Padding rows get the
        target of the first instance, which a loss that uses `mask` ignores.
        """
        padding = self.plan.shape.result.instances - len(self.index)
        return np.concatenate([self.index, np.repeat(self.index[:1], padding)])

    def drop_padding(self, result: Any) -> Any:
        """Removes the padding rows of a result.

        Args:
            result: The result of ``batched.apply(params, plan)``, outside of traces.

        Returns:
            The same pytree with B rows, one for each entry of `index`.
        """
        return first_rows(result, len(self.index))
