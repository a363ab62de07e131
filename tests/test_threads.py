"""Tests threads that record, plan and run with one batched function."""

import sys
import threading

import jax.numpy as jnp
import numpy as np
import pytest
from trees import all_states, assert_equal, encode, make_params, sample_trees

import edbatch as eb
from edbatch import planning
from edbatch.instance_results import split_instances
from edbatch.stream.slice_variants import SliceVariants
from edbatch.stream.type_widths import TypeWidths

# Static numbers make the types that threads meet at the same time.
pytestmark = pytest.mark.filterwarnings("ignore::edbatch.errors.ManyTypesWarning")

SIZES = eb.Sizes(widths=(4, 16))
SCALE = jnp.float32(0.3)


@eb.cell(static=("times",))
def scaled(params, x, times):
    return jnp.tanh(x * times + params)


@eb.cell(static=("times",))
def with_more_slots(params, values, times):
    return jnp.tanh(sum(values) * times + params)


def many_types(params, seed):
    """Calls cells with constants that few instances share."""
    rng = np.random.default_rng(seed)
    values = [1.0]
    for _ in range(5):
        values.append(scaled(params, values[-1], int(rng.integers(20))))
    return with_more_slots(params, values[: rng.integers(2, 5)], int(rng.integers(3)))


def of_many_types(**options):
    return eb.batch(many_types, params=SCALE, sizes=SIZES, **options)


@pytest.fixture
def frequent_switches():
    """Makes threads switch as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def run_in_threads(work, count):
    """Like `in_threads`; raises the first error of a thread."""
    errors = []

    def watched(k):
        try:
            work(k)
        except Exception as error:
            errors.append(error)

    in_threads(watched, count)
    if errors:
        raise errors[0]


def in_threads(work, count):
    """Calls ``work(k)`` in a thread for each k."""
    threads = [threading.Thread(target=work, args=(k,)) for k in range(count)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


class Slow(list):
    """A list that lets other threads run before it grows."""

    def append(self, value):
        threading.Event().wait(0.002)
        super().append(value)


def test_plans_are_made_in_other_threads():
    params = make_params()
    batched = eb.batch(all_states, params=params, sizes=SIZES)
    minibatches = [sample_trees(seed, 4) for seed in range(8)]
    plans = [None] * len(minibatches)

    def work(k):
        plans[k] = batched.plan(minibatches[k])

    in_threads(work, 8)
    for trees, plan in zip(minibatches, plans, strict=True):
        found = split_instances(batched.apply(params, plan), 4)
        for own, tree in zip(found, trees, strict=True):
            assert_equal(own, all_states(params, tree))


@pytest.mark.parametrize("layout", ["schedule", "aligned", "auto"])
def test_threads_plan_while_the_model_meets_new_types(layout, frequent_switches):
    batched = of_many_types(planner=eb.Planner(layout=layout))
    minibatches = [list(range(5 * k, 5 * k + 5)) for k in range(48)]
    plans = [None] * len(minibatches)

    def work(first):
        for k in range(first, len(minibatches), 4):
            plans[k] = batched.plan(minibatches[k])

    run_in_threads(work, 4)
    with eb.use_tiers("coarse"):
        found = batched.apply(SCALE, plans[47])
    expected = [many_types(SCALE, seed) for seed in minibatches[47]]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_threads_run_while_the_model_meets_new_types(frequent_switches):
    minibatches = [[2 * k, 2 * k + 1] for k in range(4)]
    batched, found = of_many_types(), [None] * 4
    start = threading.Barrier(4)

    def work(k):
        start.wait()
        found[k] = np.asarray(batched(SCALE, minibatches[k]))

    with eb.use_tiers("coarse"):
        run_in_threads(work, 4)
    for values, seeds in zip(found, minibatches, strict=True):
        expected = [many_types(SCALE, seed) for seed in seeds]
        np.testing.assert_allclose(values, expected, rtol=1e-5)


def test_loaders_plan_while_the_model_meets_new_types(frequent_switches):
    batched = of_many_types().bind(SCALE)
    loader = eb.Loader(batched, list(range(200)), 4, keep=False, threads=2)
    assert sum(1 for _ in loader) == 50


@pytest.mark.parametrize("layout", ["schedule", "aligned", "auto"])
@pytest.mark.parametrize("stage", ["choose", "overheads", "lay_out", "slices"])
def test_types_are_met_in_the_middle_of_planning(layout, stage, monkeypatch):
    # Layers that differ only in parameters share loops, so types run in another table.
    params = {"layers": [jnp.float32(k) / 9 for k in range(6)], "scale": SCALE}

    def model(params, seed):
        value = many_types(params["scale"], seed)
        for each in params["layers"]:
            value = scaled(each, value, 2)
        return value

    planner = eb.Planner(layout=layout)
    batched = eb.batch(model, params=params, sizes=SIZES, planner=planner)
    batched.plan([0])  # decides that layers share loops
    types_as_they_run = batched.states.default().planning.hoisted
    assert types_as_they_run.families()
    owner, name = {
        "choose": (TypeWidths, "choose"),
        "overheads": (TypeWidths, "overheads"),
        "lay_out": (planning, "plan_layout"),
        "slices": (SliceVariants, "choose"),
    }[stage]
    original, others = getattr(owner, name), iter(range(10, 20))

    def meets_types(*args, **kwargs):
        found = original(*args, **kwargs)
        graph = batched.graph([next(others)])
        types_as_they_run.decide_and_place(graph.node_type, graph.node_type)
        return found

    monkeypatch.setattr(owner, name, meets_types)
    plan = batched.plan([1, 2, 3])
    monkeypatch.undo()
    found = batched.apply(params, plan)
    expected = [model(params, seed) for seed in (1, 2, 3)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@eb.cell
def layer(w, x):
    return jnp.tanh(w * x)


@eb.cell
def add(x, y):
    return x + y


def of_layers(params, seed):
    """Every other instance calls layers, which run in one loop."""
    x = 1.0
    for w in params["layers"] if seed % 2 else ():
        x = layer(w, x)
    return add(many_types(params["scale"], seed), x)


def test_types_are_shared_between_the_encoding_of_a_plan_and_its_bucket(monkeypatch):
    """Otherwise the plan's loops would have type numbers of another table."""
    layers = [jnp.float32(k) for k in range(8)]
    params = {"layers": layers, "scale": SCALE}
    batched = eb.batch(of_layers, params=params, sizes=SIZES)
    batched.plan([0, 2])
    encode_graph, done = planning.encode_graph, []

    def encode_then_share(*args):
        found = encode_graph(*args)
        if not done:
            done.append(True)
            batched.plan([1, 3, 5])
        return found

    monkeypatch.setattr(planning, "encode_graph", encode_then_share)
    plan = batched.plan([4, 6, 8, 10])
    program = plan.shape.program
    assert any(each.family for each in program.types)
    for loop in program.loops:
        slots = len(program.types.types[loop.type_id].operand_kinds)
        assert all(slot < slots for slot in loop.sliced)
    expected = [of_layers(params, seed) for seed in (4, 6, 8, 10)]
    np.testing.assert_allclose(batched.apply(params, plan), expected, rtol=1e-5)


def test_threads_that_record_at_once_share_types():
    @eb.cell
    def double(params, x):
        return params * x

    batched = eb.batch(lambda params, x: double(params, x), params=jnp.float32(2))
    batched.types.kinds.avals, batched.types.types = Slow(), Slow()
    vectors = [np.arange(1 + k % 20, dtype=np.float32) for k in range(80)]
    graphs = [None] * 80
    start = threading.Barrier(4)

    def work(first):
        start.wait()
        for k in range(first, 80, 4):
            graphs[k] = batched.record(vectors[k])

    in_threads(work, 4)
    assert len(batched.types) == len(batched.types.avals) == 20
    for vector, graph in zip(vectors, graphs, strict=True):
        ((kind, pool),) = graph.externals.items()
        assert batched.types.avals[kind].shape == vector.shape
        np.testing.assert_array_equal(pool[0], vector)
        assert batched.types.types[graph.node_type[0]].external_kinds == (kind,)


def test_a_plan_is_run_while_other_shapes_are_bound():
    batched = eb.batch(encode, params=make_params(), sizes=SIZES)
    plan = batched.plan([(1, 2)])

    class Locked(dict):
        def values(self):
            assert states._lock.locked()
            return super().values()

    states = batched.states
    states._states = Locked(states._states)
    assert batched.apply(make_params(), plan)[0].shape == (1, 4)


def test_a_cell_that_the_model_calls_in_another_thread():
    def model(params, tree):
        found = []

        def call():
            try:
                found.append(encode(params, tree))
            except eb.RecordingError as error:
                found.append(error)

        in_threads(lambda _: call(), 1)
        raise found[0]

    with pytest.raises(eb.RecordingError, match="usually in a thread that the model"):
        eb.batch(model)(make_params(), [(1, 2)])
