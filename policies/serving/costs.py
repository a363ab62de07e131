"""Tables of batch times for simulated servers."""

from collections.abc import Sequence

import numpy as np

from edbatch.arguments import check_number
from edbatch.errors import PolicyError
from edbatch.graph.node_type import TypeKey
from edbatch.policies.cost.model import CostModel

_LEAST_US = 1.0  # minimum time of a batch


def batch_costs(
    costs: CostModel, type_keys: Sequence[TypeKey], max_rows: int = 256
) -> np.ndarray:
    """Tabulates measured costs.

    Args:
        costs: The costs, from ``edbatch calibrate``.
        type_keys: The types of the instances that are served.
        max_rows: Maximum number of rows of a batch.

    Returns:
        Milliseconds by type and number of rows, ``[T, max_rows + 1] float64``. A batch
        takes at least a microsecond, because a measured cost can be 0.

    Raises:
        PolicyError: A type was not measured, or `max_rows` is not a whole number of at
            least 1.

    Example:
        >>> key = TypeKey("a", "", 0)
        >>> costs = CostModel((key,), (2, 4), ((300.0, 400.0),), (2,), (1.0,))
        >>> batch_costs(costs, (key,), 5).tolist()
        [[0.0, 0.3, 0.3, 0.4, 0.4, 0.7]]
    """
    check_number(PolicyError, "max_rows of a server", max_rows, 1, whole=True)
    times = [
        [
            0.0,
            *(
                max(_LEAST_US, costs.batch_us(key, rows)) / 1000
                for rows in range(1, max_rows + 1)
            ),
        ]
        for key in type_keys
    ]
    return np.array(times)


def affine_costs(
    num_types: int,
    *,
    fixed_ms: float = 0.05,
    row_ms: float = 0.002,
    max_rows: int = 256,
) -> np.ndarray:
    """Makes costs without measurements: a fixed time per batch and a time per row.

    Args:
        num_types: Number of types, which all have the same costs.
        fixed_ms: The fixed time.
        row_ms: The time per row.
        max_rows: Maximum number of rows of a batch.

    Returns:
        As `batch_costs`.

    Raises:
        PolicyError: A time is negative, or `max_rows` is not a whole number of at least
            1.

    Example:
        >>> affine_costs(1, fixed_ms=1, row_ms=0.5, max_rows=2).tolist()
        [[0.0, 1.5, 2.0]]
    """
    check_number(PolicyError, "max_rows of a server", max_rows, 1, whole=True)
    check_number(PolicyError, "fixed_ms of a batch", fixed_ms, 0)
    check_number(PolicyError, "row_ms of a batch", row_ms, 0)
    times = fixed_ms + row_ms * np.arange(max_rows + 1)
    times[0] = 0
    return np.tile(times, (num_types, 1))
