"""The rows of comparison tables."""

from dataclasses import replace

import pytest

from edbatch.cli.rows import (
    COLUMNS,
    add_optima,
    as_rows,
    comparisons,
    print_rows,
    where_beaten,
)
from edbatch.policies import (
    Agenda,
    AgendaRemaining,
    BeamSearch,
    BestOfHeuristics,
    Depth,
    Greedy,
    MachineState,
    StateMachine,
    compare,
)
from edbatch.schedule.examples import chain, tree

# Tree: depth takes 6 batches, the optimum is 5, the bound 4. Chain: no choice.
STRUCTURES = [tree("(((a)b)c((a)c)b)d"), chain("ab")]
# A learned policy that always runs the last type of the frontier, so it runs b before
# both b nodes are ready.
TREES = [tree("(b(a)b)c"), chain("ab")]
POOR = StateMachine(
    TREES[0].type_keys,
    "base",
    tuple(MachineState(each, each[-1]) for each in ((0,), (0, 1), (1,), (2,))),
)


def test_rows_of_a_policy_and_of_the_heuristics() -> None:
    found = comparisons(POOR, TREES)
    names = [row.policy for row in found]
    heuristics = ["agenda", "agenda-remaining", "depth", "greedy"]
    assert names == ["learned", "learned alone", *heuristics]
    policies = [Agenda(), AgendaRemaining(), Depth(), Greedy()]
    expected = compare([BestOfHeuristics(POOR), POOR, *policies], TREES)
    assert [row.batches for row in found] == [row.batches for row in expected]


def test_learned_is_what_users_get_and_never_runs_more_than_a_heuristic() -> None:
    learned, alone, *heuristics = comparisons(POOR, TREES)
    assert alone.batches == (4, 2)
    assert learned.batches == (3, 2)
    assert learned.mean_batches == min(row.mean_batches for row in heuristics)


def test_a_policy_that_a_heuristic_beats_is_said_to_be() -> None:
    found = comparisons(POOR, TREES)
    assert where_beaten(found, 1024) == (
        "At 1,024 instances per minibatch greedy runs fewer batches than the policy"
        " alone: 2.50 instead of 3.00, or 1.000 instead of 1.167 times the lower bound."
        " The guard of eb.batch takes its schedules where they have fewer batches."
    )
    assert where_beaten(comparisons(Greedy(), STRUCTURES), 1) is None


def test_a_heuristic_that_is_asked_for_by_name_is_run_as_it_is() -> None:
    learned, alone, *_ = comparisons(Depth(), STRUCTURES)
    assert learned.batches == alone.batches == (6, 2)


def test_a_row_of_the_search() -> None:
    found = comparisons(POOR, TREES, search_ms=200)
    names = [row.policy for row in found]
    heuristics = ["agenda", "agenda-remaining", "depth", "greedy"]
    assert names == ["learned", "learned alone", "searched", *heuristics]
    assert found[1].batches == (4, 2)
    [searched] = compare([BestOfHeuristics(BeamSearch(POOR, 200))], TREES)
    assert found[2].batches == searched.batches == (3, 2)


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
    assert all(list(row) == ["batch_size", *COLUMNS] for row in rows)
    assert [row["proven_bound"] for row in rows] == [3.5, 3.5]
    assert [row["ratio_to_proven"] for row in rows] == [1.1, 1.0]
    assert [row["proven_optimal"] for row in rows] == [1, 2]


@pytest.mark.parametrize("sizes", [(3,), (3, 40)])
@pytest.mark.parametrize("is_exact", [False, True])
def test_tables_fit_a_narrow_terminal(sizes, is_exact, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    found = comparisons(POOR, TREES, search_ms=200)
    rows = []
    for size in sizes:
        added = as_rows(found, size)
        if is_exact:
            add_optima(added, Depth(), STRUCTURES, found)
        rows += added
    print_rows(rows, "a title")
    text = capsys.readouterr().out
    assert "a title" in text
    # However columns fold, the words of all headers and policies stay whole.
    heads = [head for name, head in COLUMNS.items() if name in rows[0]]
    for word in {word for head in heads for word in head.split()}:
        assert word in text, word
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("agenda-remaining") == len(sizes) * (1 + is_exact)
    for size in sizes:
        assert (f"Minibatches of {size}" in text) == (len(sizes) > 1)
    assert text.count("searched") == len(sizes) * (1 + is_exact)
    assert ("exact search" in text) == is_exact
