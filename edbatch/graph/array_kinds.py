"""Array kinds: the shapes and dtypes of a model's values, numbered."""

import math
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from edbatch.graph.external_input import input_dtype
from edbatch.graph.node_type import Aval

_KEY_NUMBERS = Aval((2,), np.dtype(np.uint32))  # instance, call


class ArrayKinds:
    """The array kinds of one model, in the order in which recordings met them.

    Attributes:
        avals: Shape and dtype of each kind.
        lock: Guards the kinds and the types that refer to them.
    """

    def __init__(self) -> None:
        self.avals: list[Aval] = []
        self.lock = threading.RLock()
        self._numbers: dict[Aval, int] = {}

    def number(self, shape: tuple[int, ...], dtype: Any) -> int:
        """Returns the number of an array kind; adds the kind if it is new."""
        aval = Aval(tuple(shape), np.dtype(dtype) if is_plain(dtype) else dtype)
        with self.lock:  # two threads may meet new kinds at once
            found = self._numbers.get(aval)
            return self.append(aval) if found is None else found

    def knows_value(self, value: Any) -> bool:
        """Tells whether a concrete value is of a kind that was met before."""
        dtype = input_dtype(value)
        aval = Aval(np.shape(value), np.dtype(dtype) if is_plain(dtype) else dtype)
        return aval in self._numbers

    def append(self, aval: Aval) -> int:
        """Numbers an array kind that is not known yet."""
        number = len(self.avals)
        # `avals` first: after an exception between the two lines, such as Ctrl-C, no
        # number refers to a missing entry.
        self.avals.append(aval)
        self._numbers[aval] = number
        return number

    def of_value(self, value: Any) -> int:
        """Returns the number of the array kind of a concrete value.

        Args:
            value: A number or an array, as `as_input` returns it.

        Returns:
            The number; the dtype is the one that JAX would give the value.
        """
        return self.number(np.shape(value), input_dtype(value))

    def pool_aval(self, kind: int) -> Aval:
        """Returns shape and dtype of one external input in graphs and plans.

        Args:
            kind: An array kind.

        Returns:
            The aval of the kind. For random keys, the aval of the two numbers from
            which `node_key` derives the key: instance and call.
        """
        aval = self.avals[kind]
        return aval if is_plain(aval.dtype) else _KEY_NUMBERS

    def row_bytes(self, kind: int) -> int:
        """Returns the number of bytes in one row of an array kind."""
        aval = self.pool_aval(kind)
        return aval.dtype.itemsize * math.prod(aval.shape)


def is_plain(dtype: Any) -> bool:
    """Tells whether a dtype is that of numbers rather than of random keys."""
    if isinstance(dtype, np.dtype):  # true in nearly all cases
        return True
    return not jnp.issubdtype(dtype, jax.dtypes.extended)
