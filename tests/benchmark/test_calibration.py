from dataclasses import replace
from itertools import combinations

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import edbatch as eb
from edbatch import measuring
from edbatch.benchmark import calibrate
from edbatch.benchmark.calibration import Timed, fit_rest, predict, with_all_types
from edbatch.benchmark.chunk_times import extended, rising, time_chunks
from edbatch.benchmark.replay import Replay
from edbatch.benchmark.stopwatch import Stopwatch
from edbatch.data import Tree
from edbatch.models import get_workload
from edbatch.policies import Agenda, CostModel, Depth, Greedy

pytestmark = pytest.mark.usefixtures("quick_compiles")


def silent(done, total, what):
    pass


@pytest.fixture(scope="module")
def workload():
    return get_workload("tree-lstm", vocabulary_size=20)


@pytest.fixture(scope="module")
def params(workload):
    return workload.init_params(jax.random.key(0), 4)


@pytest.fixture(scope="module")
def trees(workload):
    return workload.sample(np.random.default_rng(0), 12)


@pytest.fixture(scope="module")
def batched(workload, params):
    # No headroom: added chunks must fit into arenas that are already full.
    return eb.batch(
        workload.model,
        params=params,
        sizes=eb.Sizes(headroom=1.0),
        compiler=eb.Compiler(slices="never"),
    )


@pytest.fixture(scope="module")
def replay(batched, trees):
    batched.policy = Depth()  # takes more steps
    replay = Replay(batched.plan(trees[:6]))
    assert replay.plan.num_steps > 2
    return replay


def turns_of(plan):
    """Iterations of each loop, summed over all steps."""
    return plan.trips[: plan.num_steps].sum(axis=0)


# ---- more chunks in a minibatch ----


def test_without_more_chunks_nothing_changes(batched, params, replay):
    plain = replay.add(replay.loops[0], 0)
    np.testing.assert_array_equal(turns_of(plain), turns_of(replay.plan))
    jax.tree.map(
        np.testing.assert_array_equal,
        batched.apply(params, plain),
        batched.apply(params, replay.plan),
    )


def chunks_of(plan):
    """Type, width, output rows and rows to read, ``[slots, width]``, per chunk."""
    program = plan.shape.program
    found, at = [], 0
    for row in plan.trips[: plan.num_steps]:
        for loop, turns in zip(program.loops, row, strict=True):
            node_type = program.types.types[loop.type_id]
            for _ in range(turns):
                outputs = len(node_type.output_kinds)
                reads = len(node_type.external_kinds) + len(node_type.operand_kinds)
                end = at + outputs + 1 + loop.width * reads
                record = plan.stream[at:end]
                reads = record[outputs + 1 :].reshape(-1, loop.width)
                found.append((loop.type_id, loop.width, record[:outputs], reads))
                at = end
    assert not plan.stream[at:].any()
    return found


def lanes_of(chunks, type_id):
    return np.concatenate([each[3] for each in chunks if each[0] == type_id], axis=1)


def test_more_chunks_are_of_their_loop_and_have_rows_that_exist(replay):
    program, pools = replay.plan.shape.program, replay.plan.pools
    arenas, before = dict(program.arena_rows), turns_of(replay.plan)
    assert len({loop.width for loop in replay.loops}) > 2
    for p, loop in enumerate(replay.loops):
        node_type = program.types.types[loop.type_id]
        for count in (1, 7, 64):
            plan = replay.add(loop, count)
            more = turns_of(plan) - before
            assert more[p] == count == more.sum()
            limits = [
                *(len(pools[kind]) for kind in node_type.external_kinds),
                *(arenas[kind] for kind in node_type.operand_kinds),
            ]
            for type_id, width, outputs, reads in chunks_of(plan):
                if (type_id, width) == loop[:2]:
                    last = [arenas[kind] - width for kind in node_type.output_kinds]
                    assert ((outputs > 0) & (outputs <= last)).all()
                    assert (reads > 0).all() and (limits > reads.T).all()


def test_more_chunks_read_what_the_real_ones_do(replay):
    real = chunks_of(replay.plan)
    for type_id in {loop.type_id for loop in replay.loops}:
        loop = min(each for each in replay.loops if each.type_id == type_id)
        steps = int(replay.plan.num_steps)
        count = 3 * steps
        plan = replay.add(loop, count)
        assert int(plan.num_steps) == 2 * steps
        own = [plan.trips[2 * k + 1].sum() for k in range(steps)]
        assert own == [3] * steps
        added, at = [], 0
        found = chunks_of(plan)
        for k in range(steps):
            at += plan.trips[2 * k].sum()
            added += found[at : at + 3]
            at += 3
        expected = lanes_of(real, type_id)
        read = np.concatenate([reads for *_, reads in added], axis=1)
        cycle = np.arange(read.shape[1]) % expected.shape[1]
        np.testing.assert_array_equal(read, expected[:, cycle])


def test_added_chunks_run_in_the_same_program(batched, params, replay):
    batched.apply(params, replay.add(replay.loops[0], 0))
    before = batched.compiles
    for loop in replay.loops[:3]:
        result = batched.apply(params, replay.add(loop, 2))
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result))
    assert batched.compiles == before


def test_there_is_room_for_so_many_chunks(replay):
    loop = replay.loops[0]
    most = replay.most(loop)
    assert turns_of(replay.add(loop, most))[0] >= most
    with pytest.raises(AssertionError, match="no room for"):
        replay.add(loop, most + 1)


def test_a_minibatch_gets_every_type(batched):
    leaf = Tree(word=1)
    small, large = leaf, Tree(children=(leaf, leaf))
    first, second, third = (batched.record(each) for each in (small, large, large))
    assert with_all_types([first], [second, third]) == [first, second]
    assert with_all_types([second], [first, third]) == [second]


# ---- times ----


class Clock:
    """A fake clock: a plan is the number of seconds that it takes."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(measuring.time, "perf_counter", lambda: self.now)

    def run(self, seconds):
        self.now += seconds


def test_a_stopwatch_compares_with_its_standard(monkeypatch):
    clock = Clock(monkeypatch)
    watch = Stopwatch(clock.run, 2.0)
    assert watch.ratio(1.0, 3.0).tolist() == [0.5, 1.5]
    assert watch.standard_us == 2e6
    watch.standard = 4.0  # the machine slows down
    assert watch.ratio(2.0, 6.0).tolist() == [0.5, 1.5]
    watch.ratio(2.0)
    assert watch.standard_us == 4e6


class Exact:
    """A stopwatch for which a plan takes 5.0 plus the costs of its chunks."""

    def __init__(self, replay, cost):
        self.cost = np.array([cost(*loop[:2]) for loop in replay.loops])
        self.standard = self.total(replay.plan)

    def total(self, plan):
        return 5.0 + turns_of(plan) @ self.cost

    def ratio(self, *plans):
        return np.array([self.total(plan) for plan in plans]) / self.standard


def test_times_of_chunks_are_found(replay):
    def cost(type_id, width):
        return 0.01 * (1 + type_id) * (3 + width)

    watch = Exact(replay, cost)
    shares = time_chunks(replay, watch, 1, silent)
    found = {(t, width): share for t in shares for width, share in shares[t].items()}
    assert found.keys() == {loop[:2] for loop in replay.loops}
    for pair, share in found.items():
        assert share * watch.standard == pytest.approx(cost(*pair))


def test_times_of_chunks_are_never_negative_and_rise(replay):
    shares = time_chunks(replay, Exact(replay, lambda _, width: 1 / width), 1, silent)
    for by_width in shares.values():
        assert list(by_width) == sorted(by_width)
        assert len({round(share, 9) for share in by_width.values()}) == 1
    shares = time_chunks(replay, Exact(replay, lambda *_: -1e-4), 1, silent)
    assert {share for each in shares.values() for share in each.values()} == {0.0}


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=6))
def test_rising_is_the_nearest(values):
    found = rising(values)
    assert (np.diff(found) >= 0).all()
    best = np.inf
    for cuts in range(len(values)):
        for places in combinations(range(1, len(values)), cuts):
            pools = np.split(np.array(values, float), places)
            means = [pool.mean() for pool in pools]
            if (np.diff(means) >= 0).all():
                best = min(best, sum(((p - p.mean()) ** 2).sum() for p in pools))
    assert ((np.array(found) - values) ** 2).sum() == pytest.approx(best)


def test_missing_widths_go_on_at_the_mean_rise():
    assert extended({4: 5.0, 8: 6.0, 16: 11.0}, [4, 8, 16, 24]) == [5, 6, 11, 15]
    assert extended({4: 5.0}, [4, 8]) == [5.0, 5.0]


# ---- costs ----


@pytest.fixture(scope="module")
def timed(batched, trees):
    """Minibatches that take 40 standards, plus 2.5 per batch and 1 per node."""
    costs = CostModel(
        tuple(each.key for each in batched.types.types),
        (1,),
        ((1.0,),) * len(batched.types.types),
        (1,) * len(batched.types.types),
        (1.0,) * len(batched.types.types),
    )
    found = []
    for policy in (Greedy(), Depth()):
        structure = batched.graph(trees).structure
        schedule = policy.schedule(structure)
        full = 40 + 2.5 * schedule.num_batches + structure.num_nodes
        found.append(Timed(schedule, idle=40.0, full=full))
    return costs, found


def test_what_minibatches_cost_beside_chunks_is_found(timed):
    costs, found = timed
    slow = replace(costs, chunk_us=((2.0,),) * len(costs.types))
    fitted = fit_rest(slow, found, standard_us=2.0)
    assert fitted.switch_us == pytest.approx(5.0)
    assert fitted.call_us == pytest.approx(80.0)
    for each in found:
        one = predict(fitted, [each], standard_us=2.0)
        assert one.policy == each.schedule.policy
        assert one.batches == each.schedule.num_batches
        assert one.measured_ms == pytest.approx(each.full * 2 / 1e3)
        assert one.predicted_ms == pytest.approx(one.measured_ms)
        assert one.error_percent == pytest.approx(0)


def test_a_batch_never_costs_less_than_its_chunks(timed):
    costs, found = timed
    dear = replace(costs, chunk_us=((99.0,),) * len(costs.types))
    fitted = fit_rest(dear, found, standard_us=1.0)
    assert fitted.switch_us == 0
    one = predict(fitted, found[:1], standard_us=1.0)
    assert one.error_percent == pytest.approx(
        100 * (one.predicted_ms / one.measured_ms - 1)
    )


def test_a_calibration(workload, params, trees):
    told = []
    found = calibrate(
        workload.model,
        params,
        [trees[:3], trees[3:6]],
        [trees[6:9]],
        rounds=1,
        workload="trees",
        hidden=4,
        policies=(Agenda(), Depth()),
        progress=lambda *each: told.append(each),
    )
    costs = found.costs
    assert sorted(map(str, costs.types)) == ["classify/1", "compose/4", "leaf/0"]
    assert costs.widths == eb.Sizes().widths
    assert all((np.diff(each) >= 0).all() for each in costs.chunk_us)
    assert max(costs.measured_widths) <= len(costs.widths)
    assert min(costs.measured_widths) >= 2
    assert costs.batches[[str(key) for key in costs.types].index("leaf/0")] == 1
    assert costs.call_us > 0
    assert costs.record.workload == "trees"
    assert (costs.record.hidden, costs.record.batch_size) == (4, 3)
    assert (costs.record.minibatches, costs.record.rounds) == (2, 1)
    assert [each.policy for each in found.predictions] == ["agenda", "depth"]
    assert all(each.measured_ms > 0 for each in found.predictions)
    assert all(done <= total for done, total, _ in told)
    assert {what for *_, what in told} == {
        "Preparing",
        "Timing chunks",
        "Timing minibatches",
    }
