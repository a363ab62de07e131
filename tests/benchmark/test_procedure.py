import json
import signal
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb
from edbatch.benchmark import (
    SYSTEMS,
    BenchmarkConfig,
    BenchmarkError,
    MeasuredModel,
    run_benchmark,
)
from edbatch.benchmark.compile_counter import count_compiles
from edbatch.benchmark.differences import max_abs_error, max_relative_error
from edbatch.benchmark.measure import warm_up
from edbatch.benchmark.minibatches import draw_minibatches, random_params, ready_model
from edbatch.benchmark.systems import Batched, Unbatched
from edbatch.data import Tree
from edbatch.errors import EdbatchError
from edbatch.models import get_workload
from edbatch.policies import warm_up as warm_up_training
from edbatch.policies.fsm import episode

pytestmark = pytest.mark.usefixtures("quick_compiles")

KEYS = {
    "system",
    "forward_ms",
    "record_ms",
    "plan_ms",
    "compile_s",
    "compiles",
    "max_abs_error",
    "instances_per_s",
}
SMALL = BenchmarkConfig(
    hidden=8, batch_size=3, rounds=2, minibatches=2, policy="greedy"
)


@pytest.fixture(scope="module")
def brackets(tmp_path_factory):
    """A treebank of short trees, which compile fast."""
    tree = "(S (A a) (B (C b) (D {})))"
    lines = [tree.format(word) for word in "cdefgh"] + ["(S (A (B a) (C b)) (D d))"]
    file = tmp_path_factory.mktemp("trees") / "trees.ptb"
    file.write_text("\n".join(lines * 3))
    return file


@pytest.fixture(scope="module")
def watched(brackets):
    """The result of a run with all systems, and its progress reports."""
    told = []
    config = replace(SMALL, data=(brackets,), policy=None, train=True)
    return run_benchmark(config, lambda *each: told.append(each)), told


def test_all_systems(watched):
    result, _ = watched
    assert [row.system for row in result.rows] == list(SYSTEMS)
    assert result.left_out == {}
    for row in result.rows:
        assert row.max_abs_error < 1e-6, row.system
        assert row.forward_ms > 0
        assert row.percent_of_peak > 0
        total_ms = row.record_ms + row.plan_ms + row.forward_ms
        assert row.instances_per_s == pytest.approx(3e3 / total_ms)
        assert row.host_percent == pytest.approx(100 * row.plan_ms / row.forward_ms)
        assert row.percent_of_peak == pytest.approx(
            100 * result.minibatch.gflop / (row.forward_ms / 1e3) / result.peak_gflops
        )


def test_gradients_of_all_systems(watched):
    result, _ = watched
    trained = {row.system: row.train for row in result.rows}
    for name, row in trained.items():
        assert row.max_gradient_error < 1e-5, name
        assert row.train_ms > 0
        assert row.ratio_to_forward > 0
    assert trained["exact"].ratio_to_exact == 1
    assert trained["unbatched"].max_gradient_error == 0
    assert trained["edbatch"].compiles == 1 and trained["exact"].compiles == 2
    assert trained["edbatch"].compile_s > 0


def test_compiles_of_all_systems(watched):
    result, _ = watched
    compiles = {row.system: row.compiles for row in result.rows}
    assert compiles["exact"] == 2
    assert compiles["unbatched"] == 3  # its cells
    # One program runs all minibatches; another packs the parameters before them.
    assert [compiles[each] for each in ("edbatch", "agenda", "depth")] == [2, 2, 2]
    assert all(row.compile_s > 0 for row in result.rows)


def test_facts_of_some_systems(watched):
    result, _ = watched
    assert result.row("exact").ratio_to_exact == 1
    assert result.row("edbatch").batches == result.minibatch.lower_bound == 4
    assert result.row("scan").batches is None
    unbatched = result.row("unbatched")
    assert (unbatched.record_ms, unbatched.plan_ms) == (0, 0)
    assert unbatched.max_abs_error == 0
    assert result.policy == "greedy, which already meets the bound on every minibatch"


def test_policies_in_place_of_systems(monkeypatch):
    # No policy is learned, so none is trained.
    monkeypatch.setattr("edbatch.benchmark.minibatches.train_policy", None)
    names = ("depth", "agenda-remaining", "greedy")
    config = replace(SMALL, policy=None, policies=names, batch_size=6, rounds=1)
    result = run_benchmark(config)
    assert [row.system for row in result.rows] == [*names]
    rng = np.random.default_rng(config.seed)
    model = ready_model(config, rng)
    drawn = draw_minibatches(model.instances, config, rng).measured
    params = model.params
    for row in result.rows:
        assert row.max_abs_error < 1e-6
        batched = eb.batch(model.function, row.system, params=params)
        assert row.batches == np.mean([batched.plan(d).report.batches for d in drawn])
    depth, _, greedy = (row.batches for row in result.rows)
    assert depth > greedy


def test_the_learned_policy_is_the_one_that_was_asked_for(brackets):
    config = replace(SMALL, data=(brackets,), policy="depth", policies=("learned",))
    assert not config.trains
    learned = run_benchmark(config).row("learned")
    depth = run_benchmark(replace(config, policies=("depth",))).row("depth")
    assert learned.batches == depth.batches
    assert replace(config, policy=None).trains
    assert not replace(config, policy=None, policies=("greedy",)).trains


def test_progress_arrives_at_its_end(watched):
    _, told = watched
    done, totals, _ = zip(*told, strict=True)
    assert sorted(done) == list(done)
    assert done[-1] == totals[-1]
    assert len(set(totals)) == 1


def test_json_has_the_keys_that_were_promised(watched, brackets):
    value = json.loads(json.dumps(watched[0].to_json(), allow_nan=False))
    assert [row["system"] for row in value["rows"]] == list(SYSTEMS)
    for row in value["rows"]:
        assert set(row) >= KEYS
    assert value["peak_gflops"] > 0
    assert value["config"]["data"] == [str(brackets)]
    assert value["device"]["platform"] == jax.default_backend()
    assert value["versions"]["jax"] == jax.__version__
    assert value["minibatch"]["instances"] == 3


def test_what_cannot_run_is_left_out_with_the_reason(tmp_path):
    file = tmp_path / "tags.tsv"
    file.write_text("a\tO\nb\tO\n\nc\tO\n\nd\tO\ne\tO\nf\tO\n")
    config = replace(
        SMALL,
        workload="bilstm-tagger",
        data=(file,),
        systems=("scan", "unbatched"),
    )
    result = run_benchmark(config)
    assert [row.system for row in result.rows] == ["unbatched"]
    assert "4 types (lstm@" in result.left_out["scan"]
    assert result.row("unbatched").ratio_to_exact is None


def test_compiles_only_runs_edbatch_alone(brackets):
    config = replace(SMALL, data=(brackets,), minibatches=7, compiles_only=True)
    result = run_benchmark(config)
    [row] = result.rows
    assert row.system == "edbatch"
    assert row.max_abs_error is None
    assert row.train is None
    assert result.peak_gflops is None
    assert 1 <= row.compiles <= 3


def test_compiles_of_training_are_counted_likewise(brackets):
    config = replace(
        SMALL, data=(brackets,), minibatches=7, compiles_only=True, train=True
    )
    [row] = run_benchmark(config).rows
    assert 1 <= row.train.compiles <= 3
    assert row.train.max_gradient_error is None


def test_options_reach_the_workload(brackets):
    config = replace(
        SMALL,
        data=(brackets,),
        systems=("unbatched",),
        options={"classify": "nodes"},
        policy="depth",
    )
    result = run_benchmark(config)
    assert result.policy == "depth, as asked for by --policy depth"
    # Three trees of two or three inner nodes; every node and leaf is classified.
    assert result.minibatch.nodes == pytest.approx(3 * 10, abs=6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden": 0}, "--hidden must be 1 or more but is 0; leave it out for 128"),
        ({"batch_size": 0}, "--batch-size must be 1 or more but is 0"),
        ({"rounds": -1}, "--rounds must be 1 or more but is -1"),
        ({"minibatches": 0}, "--minibatches must be 1 or more but is 0"),
        ({"seed": -1}, "--seed must be 0 or more but is -1"),
        ({"systems": ()}, "--systems names no system; leave it out to compare edbatch"),
        ({"systems": ("exakt",)}, "no system 'exakt'; did you mean 'exact'?"),
        (
            {"systems": ("scan", "scan")},
            "--systems must not repeat a name but is scan,scan",
        ),
    ],
)
def test_a_wrong_configuration(changes, message):
    with pytest.raises(BenchmarkError) as caught:
        replace(SMALL, **changes)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workload": "tree-lstn"}, "did you mean 'tree-lstm'"),
        ({"policy": "gredy"}, "did you mean 'greedy'"),
    ],
)
def test_a_name_that_does_not_exist(changes, message):
    with pytest.raises(EdbatchError, match=message):
        run_benchmark(replace(SMALL, **changes))


def draw(config):
    rng = np.random.default_rng(config.seed)
    return draw_minibatches(ready_model(config, rng).instances, config, rng)


def test_minibatches_share_no_instance():
    config = replace(SMALL, policy=None)
    drawn = draw(config)
    measured = [id(each) for batch in drawn.measured for each in batch]
    training = {id(each) for batch in drawn.training for each in batch}
    assert [len(each) for each in drawn.measured] == [3, 3]
    assert len(set(measured)) == 6
    assert not training & set(measured)
    again = draw(config)
    assert again.measured == drawn.measured


def test_few_instances_are_used_again(brackets):
    config = replace(SMALL, data=(brackets,), batch_size=30)
    drawn = draw(config)
    assert [len(each) for each in drawn.measured] == [30, 30]
    assert len({id(each) for each in drawn.measured[0]}) == 21


def test_no_parameter_is_zero():
    for name in ("tree-lstm", "tree-lstm-childsum", "bilstm-tagger"):
        params = random_params(get_workload(name), 8, 0)
        for leaf in jax.tree.leaves(params):
            assert (np.asarray(leaf) != 0).all()
            assert 0.01 < np.abs(leaf).max() < 10


def test_compiles_of_edbatch_are_those_that_it_counts():
    workload = get_workload("tree-lstm", vocabulary_size=9)
    params = workload.init_params(jax.random.key(0), 4)
    system = Batched("edbatch", workload.model, params, eb.get_policy("greedy"))
    pair = Tree(children=(Tree(word=1), Tree(word=2)))
    with count_compiles() as count:
        warm = warm_up(system, [[pair], [pair], [pair, pair]], None, count)
    assert warm.forward.num_compiles == system.batched.compiles + 1  # packing
    assert warm.forward.compiles[:2].tolist() == [2, 0]


def test_plans_are_made_afresh():
    workload = get_workload("tree-lstm", vocabulary_size=9)
    params = workload.init_params(jax.random.key(0), 4)
    system = Batched("edbatch", workload.model, params, eb.get_policy("greedy"))
    recordings = system.record([Tree(word=1)])
    system.plan(recordings)
    assert not system.plan(recordings).report.cached


def test_unbatched_compiles_its_cells_only():
    workload = get_workload("tree-lstm", vocabulary_size=9)
    params = workload.init_params(jax.random.key(0), 5)
    trees = [Tree(children=(Tree(word=1), Tree(word=2)))] * 2
    system = Unbatched(workload.model, params)
    with count_compiles() as count:
        warm = warm_up(system, [trees, trees], None, count)
    assert warm.forward.compiles.tolist() == [3, 0]


@eb.cell
def embed(params, word, rng=None):
    state = params["embed"][word]
    return state if rng is None else state * jax.random.uniform(rng, state.shape)


@eb.cell
def join(params, left, right):
    return jnp.tanh((left + right) @ params["w"] + params["b"])


def own_model(params, tree):
    if isinstance(tree, int):
        return embed(params, np.int32(tree))
    return join(params, *(own_model(params, each) for each in tree))


OWN = MeasuredModel(
    name="mine",
    function=own_model,
    params={
        "embed": jax.random.normal(jax.random.key(0), (4, 3)),
        "w": jax.random.normal(jax.random.key(1), (3, 3)),
        "b": np.zeros(3, np.float32),
        "epoch": np.int32(7),
    },
    instances=[(0, (1, 2)), ((3, 1), (2, 0)), (1, (2, (3, 0)))],
)
OWN_CONFIG = replace(
    SMALL, workload="mine", hidden=None, systems=("edbatch", "unbatched"), train=True
)


def test_a_model_of_ones_own_that_draws_and_has_integers():
    """All systems draw from the same keys; an integer parameter has no gradient."""
    systems = ("edbatch", "planner-both", "unbatched", "levels")
    result = run_benchmark(replace(OWN_CONFIG, systems=systems), None, OWN)
    assert [row.system for row in result.rows] == [*systems[:3]]
    assert "to cells, but embed can draw random numbers" in result.left_out["levels"]
    for row in result.rows:
        assert row.max_abs_error < 1e-6
        assert row.train.max_gradient_error < 1e-5
    assert result.config.hidden is None and result.minibatch.nodes > 3 * 5


def test_a_model_of_ones_own_beside_all_systems():
    def function(params, tree):
        return {"root": plain(params, tree), "size": 3}

    def plain(params, tree):
        if isinstance(tree, int):
            return pick(params, np.int32(tree))
        return join(params, *(plain(params, each) for each in tree))

    @eb.cell
    def pick(params, word):
        return params["embed"][word]

    model = replace(OWN, function=function)
    result = run_benchmark(replace(OWN_CONFIG, systems=SYSTEMS, rounds=1), None, model)
    assert [row.system for row in result.rows] == list(SYSTEMS)
    for row in result.rows:
        assert row.max_abs_error < 1e-6, row.system
        assert row.train.max_gradient_error < 1e-5, row.system


def test_a_policy_is_trained_for_a_model_of_ones_own():
    config = replace(OWN_CONFIG, policy=None, train=False, systems=("edbatch",))
    assert config.most_instances == 3 * (2 + 12)
    result = run_benchmark(config, None, OWN)
    assert result.policy == "greedy, which already meets the bound on every minibatch"


def test_a_workload_needs_a_hidden_size():
    with pytest.raises(BenchmarkError, match="'tree-lstm' needs the length of its sta"):
        run_benchmark(replace(SMALL, hidden=None))


def test_minibatches_without_a_node():
    """Every system runs a minibatch without nodes; the other minibatch has some."""

    def function(params, tree):
        if isinstance(tree, int):
            return []
        return [join(params, params["b"], params["b"])]

    model = replace(OWN, function=function, instances=[0, (0, 1)])
    config = replace(
        OWN_CONFIG, systems=SYSTEMS, rounds=1, batch_size=1, minibatches=2, seed=1
    )
    result = run_benchmark(config, None, model)
    assert [row.system for row in result.rows] == list(SYSTEMS)
    assert result.minibatch.nodes == 0.5
    for row in result.rows:
        assert row.max_abs_error < 1e-6, row.system
        assert row.train.max_gradient_error < 1e-5, row.system


def test_differences():
    nan, inf = np.nan, np.inf
    assert max_abs_error([nan, inf, 1.0], [nan, inf, 3.0]) == 2
    assert max_abs_error([nan], [1.0]) == max_abs_error([inf], [1.0]) == inf
    assert max_abs_error([np.complex64(1 + 1j)], [np.complex64(1 + 5j)]) == 4
    pairs = [np.array([1.0, nan, -inf]), np.array([3.0, nan, -inf])]
    assert max_relative_error(pairs[:1], pairs[1:]) == pytest.approx(2 / 3)
    assert max_relative_error(np.array([nan]), np.array([1.0])) == inf
    assert max_relative_error(np.array([1.0]), np.array([0.0])) == inf
    one, other = np.array([1 + 1j]), np.array([1 + 5j])
    assert max_relative_error(one, other) == pytest.approx(4 / abs(1 + 5j))


def test_json_of_what_is_no_number(watched):
    row = replace(watched[0].rows[0], max_abs_error=np.inf)
    value = json.dumps(replace(watched[0], rows=(row,)).to_json(), allow_nan=False)
    assert json.loads(value)["rows"][0]["max_abs_error"] == "inf"


def test_ctrl_c_while_it_trains_ends_it(monkeypatch):
    warm_up_training("fall")
    run_trial = episode.run_trial

    def press_ctrl_c(*arguments):
        signal.raise_signal(signal.SIGINT)
        return run_trial(*arguments)

    monkeypatch.setattr(episode, "run_trial", press_ctrl_c)
    config = replace(SMALL, workload="lattice-lstm", policy=None)
    with pytest.raises(KeyboardInterrupt):
        run_benchmark(config)
