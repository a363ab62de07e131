"""Rows of comparisons."""

from dataclasses import replace

import pytest

from edbatch.cli.rows import COLUMNS, add_optima, as_rows, comparisons, print_rows
from edbatch.policies import Agenda, Depth, Greedy, Searched, compare
from edbatch.schedule.examples import chain, tree

# Depth needs 6 batches, 5 are the fewest, 4 the bound; the other leaves no choice.
STRUCTURES = [tree("(((a)b)c((a)c)b)d"), chain("ab")]


def test_rows_of_a_policy_and_of_the_heuristics() -> None:
    found = comparisons(Depth(), STRUCTURES)
    names = [row.policy for row in found]
    assert names == ["learned", "agenda", "depth", "greedy"]
    expected = compare([Depth(), Agenda(), Depth(), Greedy()], STRUCTURES)
    assert [row.batches for row in found] == [row.batches for row in expected]


def test_a_row_of_the_search() -> None:
    found = comparisons(Depth(), STRUCTURES, search_ms=200)
    names = [row.policy for row in found]
    assert names == ["learned", "searched", "agenda", "depth", "greedy"]
    assert found[0].batches == (6, 2)
    [searched] = compare([Searched(Depth(), 200)], STRUCTURES)
    assert found[1].batches == searched.batches == (5, 2)


def test_values() -> None:
    [row] = compare([Depth()], STRUCTURES)
    [values] = as_rows([replace(row, schedule_us_per_node=0.123456)], 8)
    assert values == {
        "batch_size": 8,
        "policy": "depth",
        "batches": 4.0,
        "lower_bound": 3.0,
        "mean_ratio": 1.25,
        "worst_ratio": 1.5,
        "unseen_states": 0,
        "schedule_us_per_node": 0.1235,
    }


def test_how_far_from_the_optimum() -> None:
    found = compare([Depth(), Greedy()], STRUCTURES)
    rows = as_rows(found, 1)
    add_optima(rows, Depth(), STRUCTURES, found)
    assert all(list(row) == list(COLUMNS) for row in rows)
    assert [row["proven_bound"] for row in rows] == [3.5, 3.5]
    assert [row["ratio_to_proven"] for row in rows] == [1.1, 1.0]
    assert [row["proven_optimal"] for row in rows] == [1, 2]


@pytest.mark.parametrize("sizes", [(3,), (3, 40)])
@pytest.mark.parametrize("is_exact", [False, True])
def test_tables_fit_a_narrow_terminal(sizes, is_exact, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    found = comparisons(Depth(), STRUCTURES, search_ms=200)
    rows = []
    for size in sizes:
        added = as_rows(found, size)
        if is_exact:
            add_optima(added, Depth(), STRUCTURES, found)
        rows += added
    print_rows(rows, "a title")
    text = capsys.readouterr().out
    assert "a title" in text
    # Whole words, however columns fold: every head, and every policy.
    heads = [head for name, head in COLUMNS.items() if name in rows[0]]
    shown = [head for head in heads if head != "size" or len(sizes) > 1]
    for word in {word for head in shown for word in head.split()}:
        assert word in text, word
    assert ("size" in text) == (len(sizes) > 1)
    assert text.count("searched") == len(sizes) * (1 + is_exact)
    assert ("exact search" in text) == is_exact
