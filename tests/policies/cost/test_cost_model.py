import json
import math
import os
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from odd_json import ODD_VALUES, place_name, places

from edbatch.errors import PolicyError
from edbatch.graph import TypeKey
from edbatch.policies import CostModel, CostRecord, Depth, load_costs, save_costs
from edbatch.policies.cost.file import parse_costs
from edbatch.policies.cost.model import fit_affine
from edbatch.policies.files import json_file
from edbatch.schedule.examples import chain, tree

A, B = TypeKey("a", "", 0), TypeKey("b", "enc.0", 4)
RECORD = CostRecord(
    workload="trees, “all” of them",
    device="cpu",
    jax="0.10.2",
    hidden=128,
    batch_size=32,
    minibatches=4,
    rounds=7,
    error_percent=4.25,
)
COSTS = CostModel(
    types=(A, B),
    widths=(2, 4),
    chunk_us=((3.0, 4.0), (6.0, 10.5)),
    measured_widths=(2, 1),
    batches=(1.0, 2.5),
    switch_us=1.5,
    call_us=300.0,
    record=RECORD,
)


def text_of(costs):
    return json_file.COSTS.text(costs.to_json())


def one_type(widths, chunk_us, switch_us=0.0):
    return CostModel(
        (A,), widths, (tuple(chunk_us),), (len(widths),), (1.0,), switch_us
    )


def cheapest_cut(widths, chunk_us, count):
    """Cost of the cheapest chunks that hold `count` nodes, by exhaustive search."""

    @cache
    def best(rest):
        if rest <= 0:
            return 0.0
        options = zip(widths, chunk_us, strict=True)
        return min(us + best(rest - width) for width, us in options)

    return best(count)


# ---- batches and schedules ----


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=4, unique=True),
    st.lists(st.floats(0, 100), min_size=4, max_size=4),
    st.floats(0, 10),
)
def test_a_batch_costs_its_cheapest_cut(widths, chunk_us, switch_us):
    widths, chunk_us = tuple(sorted(widths)), chunk_us[: len(widths)]
    costs = one_type(widths, chunk_us, switch_us)
    for count in range(1, 4 * widths[-1] + 1):
        expected = switch_us + cheapest_cut(widths, chunk_us, count)
        assert costs.batch_us(A, count) == pytest.approx(expected)


@pytest.mark.parametrize("count", [16, 17, 31, 32, 33, 134])
def test_wide_batches_begin_with_widest_chunks(count):
    widths, chunk_us = (1, 4), (2.0, 5.0)
    expected = cheapest_cut(widths, chunk_us, count)
    assert one_type(widths, chunk_us).batch_us(A, count) == pytest.approx(expected)


def test_a_schedule_costs_its_batches():
    # The costs list type b before a; the graph's types are in another order.
    graph = tree("((bb)ab)a")
    costs = replace(COSTS, types=(TypeKey("b", "", 0), TypeKey("a", "", 0)))
    schedule = Depth().schedule(graph)
    assert schedule.num_batches == 3  # bbb, a, a
    by_hand = (1.5 + 4.0) + 2 * (1.5 + 6.0)
    assert costs.schedule_us(schedule, graph.type_keys) == by_hand
    assert costs.batch_us(costs.types[0], 3) == 5.5


# ---- the cost of one more batch ----


def test_an_affine_cost_is_taken_apart_exactly():
    fixed_us, per_node_us = one_type((1,), [2.5], switch_us=7.0).affine_us(A)
    assert fixed_us == pytest.approx(7.0)
    assert per_node_us == pytest.approx(2.5)


def test_no_part_is_negative():
    count = np.arange(1, 9)
    fixed, per_node = fit_affine(count, count**2.0)
    assert fixed == 0 < per_node
    fixed, per_node = fit_affine(count, 1 / count)
    assert fixed > 0 == per_node
    assert one_type((8,), [0.0]).affine_us(A) == (0.0, 0.0)


def test_the_mean_overhead_of_the_batches_that_were_measured_is_one():
    weights = COSTS.batch_overhead((A, B))
    assert weights @ np.array(COSTS.batches) == pytest.approx(sum(COSTS.batches))
    in_us = COSTS.batch_overhead_us((A, B))
    assert weights / weights[0] == pytest.approx(in_us / in_us[0])
    assert in_us.tolist() == [COSTS.affine_us(A)[0], COSTS.affine_us(B)[0]]
    assert COSTS.batch_overhead((B, A, B)) == pytest.approx(weights[[1, 0, 1]])


def test_overheads_of_batches_that_cost_nothing_are_alike():
    free = one_type((1,), [0.0])
    assert free.batch_overhead_us((A,)).tolist() == [0.0]
    assert free.batch_overhead((A, A)).tolist() == [1.0, 1.0]


# ---- types ----


def test_a_known_cell_of_another_arity_costs_as_the_nearest():
    types = tuple(TypeKey("sum", "w", arity) for arity in (2, 8))
    costs = CostModel(types, (1,), ((2.0,), (8.0,)), (1, 1), (1.0, 1.0))
    keys = [TypeKey("sum", "w", arity) for arity in (1, 2, 4, 6, 8, 9)]
    assert costs.places(keys).tolist() == [0, 0, 0, 1, 1, 1]
    assert costs.batch_us(TypeKey("sum", "w", 8, variant=3), 2) == 16.0


@pytest.mark.parametrize("key", [TypeKey("c", "", 0), TypeKey("b", "enc.1", 4)])
def test_an_unknown_cell_is_named(key):
    message = (
        r"measured, \['a/0', 'b@enc.0/4'\], but '.*/\d' was not; run edbatch calibrate"
        " for this model"
    )
    for ask in (
        lambda: COSTS.batch_us(key, 1),
        lambda: COSTS.affine_us(key),
        lambda: COSTS.batch_overhead((A, key)),
        lambda: COSTS.schedule_us(Depth().schedule(chain("a")), (key,)),
    ):
        with pytest.raises(PolicyError, match=message):
            ask()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chunk_us": ((1.0, 2.0),)}, "2 types and 2 widths but not one time for each"),
        ({"chunk_us": ((1.0,), (1.0, 2.0))}, "2 types and 2 widths but"),
        ({"batches": (1.0,)}, "2 types and 2 widths but"),
        ({"measured_widths": ()}, "2 types and 2 widths but"),
        ({"widths": (4, 2)}, r"ascending .* from 1 to 65,536, but are \(4, 2\); give"),
        ({"widths": (2, 2)}, "ascending numbers of rows"),
        ({"widths": (0, 2)}, "ascending numbers of rows"),
        ({"widths": (1, 65_537)}, "ascending numbers of rows, from 1 to 65,536, but"),
        (
            {"types": (), "chunk_us": (), "measured_widths": (), "batches": ()},
            "costs need at least one type but there is none; calibrate",
        ),
        (
            {"widths": (), "chunk_us": ((), ())},
            r"ascending numbers of rows, from 1 .* but are \(\); give",
        ),
        ({"measured_widths": (2, 0)}, r"from 1 to 2 for .* but is \(2, 0\); calibrate"),
        ({"measured_widths": (2, 3)}, r"from 1 to 2 for .* but is \(2, 3\); calibrate"),
        ({"batches": (1e13, 1.0)}, "from 0 to .* but one is 10000000000000.0; calib"),
        ({"switch_us": -1.0}, "a finite number, from 0 .* but one is -1.0; calibrate"),
        ({"call_us": math.nan}, "a finite number, from 0 .* but one is nan"),
        ({"chunk_us": ((1.0, 2.0), (1.0, math.inf))}, "but one is inf"),
    ],
)
def test_costs_that_cannot_be(change, message):
    with pytest.raises(PolicyError, match=message):
        replace(COSTS, **change)


# ---- files ----


def test_save_and_load(tmp_path):
    path = tmp_path / "costs.json"
    assert COSTS.save(path) == path
    assert load_costs(path) == load_costs(str(path)) == COSTS
    own = replace(COSTS, record=replace(RECORD, hidden=None))
    assert load_costs(save_costs(own, path)) == own
    bare = replace(COSTS, record=None)
    assert load_costs(bare.save(path)) == bare
    assert os.listdir(tmp_path) == ["costs.json"]


def test_one_line_per_type():
    lines = text_of(COSTS).splitlines()
    assert [line.strip()[:12] for line in lines if "cell" in line] == [
        '{"cell": "a"',
        '{"cell": "b"',
    ]


def test_a_file_is_replaced_as_a_whole(tmp_path, monkeypatch):
    path = COSTS.save(tmp_path / "costs.json")

    def fail(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(PolicyError, match=r"cannot be written \(No space left"):
            replace(COSTS, switch_us=9.0).save(path)
    assert load_costs(path) == COSTS
    assert os.listdir(tmp_path) == ["costs.json"]


def test_the_target_of_a_link_is_replaced(tmp_path):
    target = COSTS.save(tmp_path / "costs.json")
    link = tmp_path / "link.json"
    link.symlink_to(target)
    replace(COSTS, switch_us=9.0).save(link)
    assert link.is_symlink()
    assert load_costs(target).switch_us == 9.0


def test_files_that_cannot_be_used(tmp_path):
    with pytest.raises(PolicyError, match=r"there is no cost file .*a.json: its"):
        load_costs(tmp_path / "a.json")
    with pytest.raises(PolicyError, match=r"cannot be written \(Is a dir.*; name anot"):
        COSTS.save(tmp_path)
    (tmp_path / "a.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PolicyError, match=r"edbatch calibrate, but .*a.json is not t"):
        load_costs(tmp_path / "a.json")


def changed(*path, value=None, delete=False):
    """Returns the file's JSON with one entry replaced or removed."""
    content = json.loads(text_of(COSTS))
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    if delete:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return json.dumps(content)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "edbatch calibrate, but p is empty; run edbatch calibrate again"),
        (text_of(COSTS)[:200], "but p ends too early and is truncated; run edbatch"),
        ("[" * 100_000, r"but p is not \(it is nested too deeply\); name another file"),
        (
            '{"switch_us": NaN}',
            "p is not .NaN is not a JSON number.; name an",
        ),
        ("[]", 'says "format": "edbatch-costs" but p is other JSON; name a file that'),
        ('{"format": "edbatch-policy"}', "but p is other JSON"),
        (changed("version", value=2), "up to version 1 but p has version 2; install a"),
        (changed("version", value=True), "in p 'version' is True; run edbatch calibr"),
        (changed("version", value=0), "in p 'version' is 0"),
        (changed("types", delete=True), "in p the file has no 'types'; run edbatch"),
        (changed("types", value={}), "'types' of the file is not a JSON array"),
        (changed("types", 0, value=7), "type 0 is not an object"),
        (changed("types", 1, "arity", value="4"), "'arity' of type 1 is not a JSON in"),
        (changed("types", 1, "chunk_us", value=[1, "2"]), "'chunk_us' of type 1 is no"),
        (changed("types", 1, "chunk_us", value=[1]), "2 types and 2 widths but"),
        (changed("types", 1, "chunk_us", value=[1, -2]), "but one is -2.0"),
        (changed("types", 1, value=json.loads(changed("version"))["types"][0]), "repe"),
        (changed("widths", value=[2, 4.5]), "'widths' of the file is not a JSON int"),
        (changed("switch_us", value=None), "'switch_us' of the file is not a JSON num"),
        (changed("record", value=[]), "'record' is not an object"),
        (changed("record", "hidden", value="x"), "'hidden' of 'record' is not a JSON"),
        (changed("record", "device", delete=True), "'record' has no 'device'"),
    ],
)
def test_a_damaged_file(text, message):
    with pytest.raises(PolicyError, match=message):
        parse_costs(text, "p")


@pytest.mark.parametrize(
    "place", [*places(json.loads(text_of(COSTS)))][1:], ids=place_name
)
def test_an_odd_file_is_refused_or_works(place):
    for value in ODD_VALUES:
        try:
            costs = parse_costs(changed(*place, value=value), "p")
        except PolicyError as error:
            assert len(str(error)) <= 300
            continue
        overhead = costs.batch_overhead(costs.types)
        weights = costs.batch_weights(costs.types)
        times = [costs.batch_us(key, 1000) for key in costs.types]
        assert np.isfinite([*overhead, *weights, *times]).all()
        assert parse_costs(text_of(costs)) == costs


def test_whole_numbers_are_times_too():
    assert parse_costs(changed("switch_us", value=2)).switch_us == 2.0
