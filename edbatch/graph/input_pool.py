"""Pools of external inputs: the rows of one array kind, stacked.

An integer that does not fit the dtype that JAX gives it is rejected.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from edbatch.graph.external_input import NUMBERS
from edbatch.graph.node_type import Aval


def stack_inputs(rows: Sequence[Any], aval: Aval) -> np.ndarray:
    """Stacks the external inputs of one array kind.

    Args:
        rows: Numbers and NumPy arrays.
        aval: The array kind; its integers may be narrower than those of the rows.

    Returns:
        The pool, ``[rows, ...]``.

    Raises:
        OverflowError: An integer does not fit; `too_wide` finds it.
    """
    dtype, shape = aval.dtype, (len(rows), *aval.shape)
    if dtype.kind not in "iu" or NUMBERS.issuperset(map(type, rows)):
        return np.array(rows, dtype).reshape(shape)  # checks the range of integers
    pool = np.array(rows)  # as wide as the widest row
    if pool.dtype.kind not in "iub":  # float64, for mixtures of int64 and uint64
        pool = np.array([np.asarray(each, object) for each in rows], object)
    if pool.dtype != dtype and pool.size:
        limits = np.iinfo(dtype)
        if pool.min() < limits.min or pool.max() > limits.max:
            raise OverflowError
    return pool.astype(dtype, copy=False).reshape(shape)


def too_wide(rows: Sequence[Any], dtype: np.dtype) -> tuple[int, int]:
    """Finds the integer for which `stack_inputs` failed.

    Args:
        rows: The rows.
        dtype: The integers' dtype in the program.

    Returns:
        The first row that has such an integer, and the integer.
    """
    limits = np.iinfo(dtype)
    for row, value in enumerate(rows):
        flat = np.asarray(value).ravel().tolist()
        for each in flat:
            if not limits.min <= each <= limits.max:
                return row, each
    raise AssertionError("some integer does not fit")
