"""Compares biclique covers of tables with all partitions of their entries."""

from itertools import product

import numpy as np
import pytest

from edbatch.cell.biclique_cover import Biclique, Table, cover_bicliques


def partitions(items):
    if not items:
        yield []
        return
    first, *rest = items
    for each in partitions(rest):
        yield [[first], *each]
        for k in range(len(each)):
            yield [*each[:k], [first, *each[k]], *each[k + 1 :]]


def as_biclique(group):
    rows = tuple(sorted({row for row, _ in group}))
    columns = tuple(sorted({column for _, column in group}))
    full = set(product(rows, columns)) == set(group)
    return Biclique(rows, columns) if full else None


def least_cost(table):
    found = []
    for groups in partitions(entries_of(table)):
        bicliques = list(map(as_biclique, groups))
        if None not in bicliques:
            found.append(sum(map(table.cost, bicliques)))
    return min(found)


def entries_of(table):
    return [(row, k) for k, rows in enumerate(table.rows_of) for row in sorted(rows)]


def cost_of(table, bicliques):
    return sum(map(table.cost, bicliques))


def assert_covers(table, bicliques):
    covered = [e for each in bicliques for e in product(each.rows, each.columns)]
    assert sorted(covered) == sorted(entries_of(table))


def tables(rows, columns):
    """All patterns of a given size, with varying sizes and overheads."""
    rng = np.random.default_rng(rows * 10 + columns)
    for pattern in product([False, True], repeat=rows * columns):
        table = np.reshape(pattern, (rows, columns))
        if table.sum() > 7:
            continue
        yield Table(
            rows_of=tuple(frozenset(np.flatnonzero(column)) for column in table.T),
            row_sizes=tuple(rng.choice([1, 4, 30], rows).tolist()),
            column_sizes=tuple(rng.choice([1, 4, 30], columns).tolist()),
            overhead=int(rng.choice([0, 3, 20, 1000])),
        )


@pytest.mark.parametrize(
    ("rows", "columns"), [(0, 0), (1, 1), (1, 4), (4, 1), (2, 3), (3, 2), (2, 4)]
)
def test_small_tables_at_the_least_cost(rows, columns):
    for table in tables(rows, columns):
        found = cover_bicliques(table)
        assert_covers(table, found)
        assert cost_of(table, found) == least_cost(table)


def test_some_larger_tables_at_the_least_cost():
    for table in list(tables(3, 3))[::11]:
        assert cost_of(table, cover_bicliques(table)) == least_cost(table)


def test_without_time_to_search_pairs_are_joined():
    gained = 0
    for table in tables(2, 3):
        found = cover_bicliques(table, most_steps=0)
        assert_covers(table, found)
        separate = [Biclique((row,), (k,)) for row, k in entries_of(table)]
        assert least_cost(table) <= cost_of(table, found) <= cost_of(table, separate)
        gained += cost_of(table, found) < cost_of(table, separate)
    assert gained > 10


def test_columns_of_many_gates_are_found_at_once():
    rows = frozenset(range(6))
    table = Table((rows,) * 40, (64,) * 6, (64,) * 40, overhead=64)
    assert cover_bicliques(table) == [Biclique(tuple(range(6)), tuple(range(40)))]


def test_large_inputs_are_not_copied():
    both = frozenset({0, 1})
    table = Table((both,), (4096, 4096), (4096,), overhead=64)
    assert len(cover_bicliques(table)) == 2
