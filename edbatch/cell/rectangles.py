"""Which products run as one: the cheapest cover of a table by full rectangles.

The rows of the table are the inputs of a cell's products, the columns are the sums that
the products are terms of. An entry is a product. All products of a *rectangle*, some
rows by some columns with every entry present, can run as one: the inputs side by side,
times a matrix made of the products' own. One row is the case of products that share an
input, one column that of products that are summed.

A rectangle costs a fixed overhead, one unit per element that it writes, and, where it
has several inputs, one per element that is copied to bring them side by side. The
search is exact: a shortest path over sets of covered entries, the cheapest first, where
each step covers the first entry that is open. Columns with the same rows are taken as
one: whichever of two such columns is covered by fewer rectangles, the other can join
these at no more than its own cost. Beyond a number of steps the search gives up, and
the rectangles are those that come of joining pairs as long as that saves something.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product

_MOST_STEPS = 5_000  # some tens of milliseconds


@dataclass(frozen=True, order=True)
class Rectangle:
    """Products that run as one: all pairs of some rows and some columns."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]


@dataclass(frozen=True)
class Table:
    """Which products there are, of ``R`` inputs and ``C`` sums.

    Attributes:
        rows_of: The rows that have an entry, per column.
        row_sizes: Elements of each input.
        column_sizes: Elements of each sum.
        overhead: Cost of a product, in elements.
    """

    rows_of: tuple[frozenset[int], ...]
    row_sizes: tuple[int, ...]
    column_sizes: tuple[int, ...]
    overhead: int

    def cost(self, rectangle: Rectangle) -> int:
        """Returns what one rectangle costs, in elements."""
        rows, columns = rectangle.rows, rectangle.columns
        copied = sum(self.row_sizes[row] for row in rows) if len(rows) > 1 else 0
        written = sum(self.column_sizes[column] for column in columns)
        return self.overhead + copied + written


def cover_table(table: Table, *, most_steps: int = _MOST_STEPS) -> list[Rectangle]:
    """Covers each entry of a table by exactly one rectangle, at the least cost.

    Args:
        table: The table.
        most_steps: After so many steps the search falls back to joining pairs.

    Returns:
        The rectangles, in the order of their first entries.

    Example:
        >>> gates = (frozenset({0, 1}),) * 4  # of an LSTM, from x and h
        >>> cover_table(Table(gates, (32, 32), (32,) * 4, overhead=64))
        [Rectangle(rows=(0, 1), columns=(0, 1, 2, 3))]
        >>> reset, new_x, new_h = frozenset({0, 1}), frozenset({0}), frozenset({1})
        >>> cover_table(Table((reset, new_x, new_h), (32, 32), (32,) * 3, overhead=64))
        [Rectangle(rows=(0,), columns=(0, 1)), Rectangle(rows=(1,), columns=(0, 2))]
    """
    columns_of: dict[frozenset[int], list[int]] = {}
    for column, rows in enumerate(table.rows_of):
        if rows:
            columns_of.setdefault(rows, []).append(column)
    classes = list(columns_of.values())
    small = Table(
        rows_of=tuple(columns_of),
        row_sizes=table.row_sizes,
        column_sizes=tuple(
            sum(table.column_sizes[column] for column in each) for each in classes
        ),
        overhead=table.overhead,
    )
    found = _search(small, most_steps) or _join_pairs(small)
    return sorted(
        Rectangle(
            rectangle.rows,
            tuple(sorted(c for k in rectangle.columns for c in classes[k])),
        )
        for rectangle in found
    )


def _search(table: Table, most_steps: int) -> list[Rectangle] | None:
    """The cheapest cover; None if that takes too many steps."""
    entries = [(row, k) for k, rows in enumerate(table.rows_of) for row in sorted(rows)]
    bit = {entry: 1 << place for place, entry in enumerate(entries)}
    everything = (1 << len(entries)) - 1
    costs = {0: 0}
    last: dict[int, tuple[int, Rectangle]] = {}
    queue = [(0, 0)]
    steps = 0
    while queue:
        cost, covered = heapq.heappop(queue)
        if covered == everything:
            return _path(last, covered)
        if cost > costs[covered]:
            continue
        first = entries[((covered + 1) & ~covered).bit_length() - 1]
        for rectangle in _rectangles_at(table, first, covered, bit):
            steps += 1
            if steps > most_steps:
                return None
            after = covered | _mask(rectangle, bit)
            total = cost + table.cost(rectangle)
            if total < costs.get(after, total + 1):
                costs[after] = total
                last[after] = covered, rectangle
                heapq.heappush(queue, (total, after))
    return []  # an empty table


def _rectangles_at(
    table: Table, first: tuple[int, int], covered: int, bit: dict[tuple[int, int], int]
) -> Iterator[Rectangle]:
    """All rectangles of open entries that hold a given one, large ones first."""

    def is_open(row: int, column: int) -> bool:
        return (row, column) in bit and not bit[row, column] & covered

    row, column = first
    others = [each for each in sorted(table.rows_of[column]) if each != row]
    others = [each for each in others if is_open(each, column)]
    for some in _subsets(others):
        rows = tuple(sorted((row, *some)))
        beside = [
            k
            for k in range(len(table.rows_of))
            if k != column and all(is_open(each, k) for each in rows)
        ]
        for columns in _subsets(beside):
            yield Rectangle(rows, tuple(sorted((column, *columns))))


def _subsets(items: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for size in range(len(items), -1, -1):
        yield from combinations(items, size)


def _mask(rectangle: Rectangle, bit: dict[tuple[int, int], int]) -> int:
    return sum(bit[entry] for entry in product(rectangle.rows, rectangle.columns))


def _path(last: dict[int, tuple[int, Rectangle]], covered: int) -> list[Rectangle]:
    found = []
    while covered:
        covered, rectangle = last[covered]
        found.append(rectangle)
    return found


def _join_pairs(table: Table) -> list[Rectangle]:
    """Joins the two rectangles whose union saves most, as long as one saves."""
    found = [
        Rectangle((row,), (column,))
        for column, rows in enumerate(table.rows_of)
        for row in sorted(rows)
    ]
    while True:
        best, pair = 0, None
        for one, two in combinations(found, 2):
            union = _union(one, two)
            if union is None:
                continue
            saved = table.cost(one) + table.cost(two) - table.cost(union)
            if saved > best:
                best, pair = saved, (one, two, union)
        if pair is None:
            return found
        one, two, union = pair
        found = [each for each in found if each not in (one, two)] + [union]


def _union(one: Rectangle, two: Rectangle) -> Rectangle | None:
    """Two rectangles as one, if they have the same rows or the same columns."""
    if one.rows == two.rows:
        return Rectangle(one.rows, tuple(sorted(one.columns + two.columns)))
    if one.columns == two.columns:
        return Rectangle(tuple(sorted(one.rows + two.rows)), one.columns)
    return None
