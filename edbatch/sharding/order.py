"""Puts results into the order of the user's instances, whichever device computed them.

Each device gathers the results of its own instances, padded to a common length.
Concatenated over the devices they form a *stack*, one per leaf of the model's output.
The place of each of its rows in the result follows from how many elements each
recording adds to the leaf. The structure of the result is that of the whole minibatch.
"""

from collections.abc import Sequence

import numpy as np

from edbatch.graph.merge import check_rows
from edbatch.graph.output_tree import Outputs, ResultRows, ResultShape
from edbatch.stream.buckets import Needs


def order_results(
    outputs: Sequence[Outputs],
    lengths: Sequence[np.ndarray],
    device: np.ndarray,
    stack_rows: Sequence[int],
    shape: ResultShape,
    sizes: Needs,
) -> ResultRows:
    """Finds the rows of the stacks that hold the results of a minibatch.

    Args:
        outputs: The outputs of its recordings, aligned, in the user's order.
        lengths: The lengths of all lists of its output.
        device: The device of each recording; each device runs its recordings in the
            user's order. ``[R] int32``.
        stack_rows: Rows that each device adds to a stack, per leaf.
        shape: The static part of the result.
        sizes: Number of rows of each list in the result, by the list's name in the
            bucket.

    Returns:
        Rows of the stacks, numbered from 1 and padded with 0, and the lengths of lists.
    """
    columns = []
    for k, rows in enumerate(stack_rows):
        count = np.array([len(each.columns[k]) for each in outputs])
        first = np.empty_like(count)  # row of each recording's first element
        for d in np.unique(device):
            own = device == d
            first[own] = d * rows + 1 + np.cumsum(count[own]) - count[own]
        check_rows(int(first.max(initial=0)) + rows, "results")
        shift = first - (np.cumsum(count) - count)
        columns.append(np.repeat(shift, count) + np.arange(count.sum()))
    found = ResultRows(tuple(columns), tuple(lengths))
    return shape.pad(found, lambda name, _: sizes[name])
