"""Gaps: free ranges of rows of an arena, with functions to take and return rows.

Gaps are a table ``[G, 2] int64`` whose first entries are in use: first row, and number
of rows. They are sorted by row, and no two of them touch.
"""

import numpy as np

from edbatch.kernel import kernel

_ROW, _ROWS = range(2)
_NONE = -1


@kernel
def take_rows(gap: np.ndarray, gaps: int, top: int, rows: int) -> tuple[int, int, int]:
    """Takes rows from the smallest gap that fits, or from the end of the arena.

    Args:
        gap: The gaps; updated.
        gaps: Number of gaps.
        top: Rows of the arena so far.
        rows: Number of rows to take.

    Returns:
        The first row taken; the number of gaps; and the rows of the arena.

    Example:
        >>> gap = np.array([[1, 4], [8, 2], [12, 3]])
        >>> take_rows(gap, 3, 15, 2), take_rows(gap, 2, 15, 9)
        ((8, 2, 15), (12, 1, 21))
        >>> gap[:1].tolist()
        [[1, 4]]
    """
    best = _NONE
    for k in range(gaps):
        if gap[k, _ROWS] >= rows and (
            best == _NONE or gap[k, _ROWS] < gap[best, _ROWS]
        ):
            best = k
    if best == _NONE:
        last = gaps - 1
        if gaps == 0 or gap[last, _ROW] + gap[last, _ROWS] < top:
            return top, gaps, top + rows
        return gap[last, _ROW], last, gap[last, _ROW] + rows
    row = gap[best, _ROW]
    gap[best, _ROW] += rows
    gap[best, _ROWS] -= rows
    if gap[best, _ROWS] == 0:
        gaps -= 1
        for k in range(best, gaps):
            gap[k] = gap[k + 1]
    return row, gaps, top


@kernel
def give_rows_back(gap: np.ndarray, gaps: int, row: int, rows: int) -> int:
    """Adds rows to the gaps.

    Args:
        gap: The gaps, with room for one more; updated.
        gaps: Number of gaps.
        row: The first row.
        rows: Number of rows.

    Returns:
        The number of gaps.

    Example:
        >>> gap = np.array([[1, 2], [5, 2], [0, 0]])
        >>> give_rows_back(gap, 2, 9, 1), give_rows_back(gap, 3, 3, 2)
        (3, 2)
        >>> gap[:2].tolist()
        [[1, 6], [9, 1]]
    """
    if rows == 0:
        return gaps
    k = gaps
    while k > 0 and gap[k - 1, _ROW] > row:
        k -= 1
    touches_left = k > 0 and gap[k - 1, _ROW] + gap[k - 1, _ROWS] == row
    touches_right = k < gaps and row + rows == gap[k, _ROW]
    if touches_left and touches_right:
        gap[k - 1, _ROWS] += rows + gap[k, _ROWS]
        for j in range(k, gaps - 1):
            gap[j] = gap[j + 1]
        return gaps - 1
    if touches_left:
        gap[k - 1, _ROWS] += rows
    elif touches_right:
        gap[k, _ROW] = row
        gap[k, _ROWS] += rows
    else:
        for j in range(gaps, k, -1):
            gap[j] = gap[j - 1]
        gap[k, _ROW] = row
        gap[k, _ROWS] = rows
        return gaps + 1
    return gaps
