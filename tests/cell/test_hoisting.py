"""Products of external inputs are hoisted, and batched equals unbatched."""

import functools
import signal
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from input_programs import HOISTED, input_program, run_inputs
from programs import make_params

import edbatch as eb
from edbatch.cell import HoistedTypes
from edbatch.cell.hoisted_types import HoistedTable
from edbatch.memory_planner import check_layout
from edbatch.memory_planner.layout import plan_layout
from edbatch.schedule.hoist import hoist
from edbatch.schedule.schedule import check_schedule

pytestmark = pytest.mark.usefixtures("quick_compiles")

ALL_HOISTED = eb.Compiler(hoisting="always")
OPTIONS = {
    "whole": {"compiler": eb.Compiler(hoisting="never")},
    "default": {"compiler": ALL_HOISTED},
    "bare": {"compiler": replace(ALL_HOISTED, slices="never", packing="never")},
    "aligned": {"compiler": ALL_HOISTED, "planner": eb.Planner(layout="aligned")},
    "remat": {"compiler": replace(ALL_HOISTED, remat="always")},
}
SIZES = eb.Sizes(widths=(3,), max_waste=1e9)


def minibatch(seed, instances=4, length=20):
    rng = np.random.default_rng(seed)
    return [input_program(rng, int(rng.integers(1, length))) for _ in range(instances)]


@functools.cache
def batched(name, policy="greedy"):
    found = eb.batch(
        run_inputs, policy, sizes=SIZES, params=make_params(), **OPTIONS[name]
    )
    found.plan(minibatch(0, 12, 40))  # meets all types, so that little is compiled
    return found


@pytest.mark.parametrize("name", OPTIONS)
def test_outputs_and_gradients_on_random_programs(name):
    programs = minibatch(1)
    found = eb.verify(batched(name), make_params(1), programs)
    assert found.max_gradient_error is not None
    assert found.outputs > 50
    hoisted = batched(name).plan(programs).report.hoisted
    assert hoisted > 10 if name != "whole" else hoisted == 0


@pytest.mark.parametrize("seed", range(2, 6))
def test_outputs_on_more_programs(seed):
    eb.verify(batched("default"), make_params(seed), minibatch(seed), gradients=False)


def test_rows_that_are_used_again():
    planner = eb.Planner(reuse="always")
    found = eb.batch(
        run_inputs, "agenda", sizes=SIZES, planner=planner, compiler=ALL_HOISTED
    )
    eb.verify(found, make_params(), minibatch(3), gradients=False)


def test_every_cell_of_the_programs_is_split():
    types = batched("default").plan(minibatch(0, 12, 40)).shape.program.types.types
    hoisted = {t.key.cell for t in types if t.key.cell.endswith(".hoisted")}
    assert hoisted == {f"{name}.hoisted" for name in HOISTED}


def test_what_is_hoisted_runs_first_and_in_the_order_of_its_readers():
    own = batched("default")
    graph = own.graph(minibatch(4))
    schedule = own.policy.schedule(graph.structure)
    running, divided = hoist(graph, schedule, HoistedTypes(graph.types, always=True))
    check_schedule(divided, running.structure)
    added = running.num_nodes - graph.num_nodes
    assert divided.order[added:].tolist() == schedule.order.tolist()
    assert divided.order[:added].tolist() == [
        *range(graph.num_nodes, running.num_nodes)
    ]
    cells = [running.types.types[t].key.cell for t in divided.batch_type]
    first = len(divided.batch_type) - len(schedule.batch_type)
    assert all(cell.endswith(".hoisted") for cell in cells[:first])
    assert len(set(divided.batch_type[:first])) == first
    assert cells[first:] == [graph.types.types[t].key.cell for t in schedule.batch_type]
    # Each batch reads its hoisted part from consecutive nodes, in its own order.
    reader = np.full(running.num_nodes, -1)
    structure = running.structure
    for v in range(running.num_nodes):
        for node in structure.operand_node[
            structure.operand_start[v] : structure.operand_start[v + 1]
        ]:
            if node >= graph.num_nodes:
                assert reader[node] in (-1, v)
                reader[node] = v
    place = np.argsort(schedule.order)
    for first, last in zip(divided.batch_start, divided.batch_start[1:], strict=False):
        if last <= added:
            places = place[reader[divided.order[first:last]]]
            assert (np.diff(places) > 0).all()


@pytest.mark.parametrize("method", ["schedule", "aligned"])
def test_layouts_of_divided_graphs(method):
    own = batched("default")
    graph = own.graph(minibatch(5))
    schedule = own.policy.schedule(graph.structure)
    running, divided = hoist(graph, schedule, HoistedTypes(graph.types, always=True))
    layout = plan_layout(running, divided, SIZES, method=method)
    check_layout(layout, running)


def test_the_report_counts_the_users_nodes_and_the_schedules_batches():
    plan = batched("default").plan(minibatch(6))
    graph = batched("default").graph(minibatch(6))
    schedule = batched("default").policy.schedule(graph.structure)
    assert plan.report.nodes == graph.num_nodes
    assert plan.report.batches == schedule.num_batches
    assert plan.report.hoisted > 0


def test_external_vectors_get_their_gradient():
    @eb.cell
    def add(params, vector, state):
        return jnp.tanh(params @ vector + state)

    @eb.cell
    def zero(params):
        return jnp.zeros(3)

    def model(params, vectors):
        state = zero(params)
        for vector in vectors:
            state = add(params, vector, state)
        return state

    rng = np.random.default_rng(0)
    params = rng.normal(size=(3, 3)).astype(np.float32)
    rows = rng.normal(size=(5, 3)).astype(np.float32)
    sizes = eb.Sizes(widths=(2,))
    found = eb.batch(model, params=params, sizes=sizes, compiler=ALL_HOISTED)
    plan = found.plan([rows[:3], rows[3:]])
    [kind] = plan.pools

    def total(pool):
        return found.apply(params, replace(plan, pools={kind: pool})).sum()

    def plain(rows):
        results = []
        for own in (rows[:3], rows[3:]):
            state = jnp.zeros(3)
            for vector in own:
                state = jnp.tanh(params @ vector + state)
            results.append(state.sum())
        return sum(results)

    gradient = jax.grad(total)(plan.pools[kind])
    np.testing.assert_allclose(gradient[1:6], jax.grad(plain)(rows), rtol=1e-5)


def test_nothing_is_divided_without_products_of_inputs():
    @eb.cell
    def scale(params, number, state):
        return number * state + params

    @eb.cell
    def start(params, vector):
        return params @ vector

    def model(params, number):
        return scale(params["b"], number, start(params["a"], np.ones(2, np.float32)))

    params = {"a": jnp.ones((2, 2)), "b": jnp.ones(2)}
    found = eb.batch(model, params=params, compiler=ALL_HOISTED)
    plan = found.plan([1.0, 2.0])
    assert plan.report.hoisted == 0
    assert [t.key.cell for t in plan.shape.program.types.types] == ["start", "scale"]


@eb.cell
def recur(params, word, state):
    return jnp.tanh(params["table"][word] @ params["W"] + state @ params["U"])


@eb.cell
def begin(params):
    return params["start"]


def chain(params, words):
    state = begin(params)
    for each in words:
        state = recur(params, each, state)
    return state


@pytest.mark.parametrize(
    ("hidden", "length", "sentences", "hoisted"),
    [
        (256, 40, 4, 160),  # many narrow batches of a large cell
        (64, 40, 4, 0),  # a cell that fits into the cache
        (256, 16, 4, 0),  # few batches
        (256, 40, 64, 0),  # wide batches
    ],
)
def test_by_default_many_narrow_batches_of_large_cells_are_split(
    hidden, length, sentences, hoisted
):
    spec = jax.ShapeDtypeStruct((hidden, hidden), np.float32)
    params = {
        "W": spec,
        "U": spec,
        "table": spec,
        "start": spec.update(shape=(hidden,)),
    }
    plan = eb.batch(chain, params=params).plan([range(length)] * sentences)
    assert plan.report.hoisted == hoisted


def test_the_first_minibatch_decides():
    spec = jax.ShapeDtypeStruct((256, 256), np.float32)
    params = {"W": spec, "U": spec, "table": spec, "start": spec.update(shape=(256,))}
    found = eb.batch(chain, params=params)
    hoisted = [found.plan([range(n)] * 4).report.hoisted for n in (40, 3)]
    assert hoisted == [160, 12]
    found = eb.batch(chain, params=params)
    hoisted = [found.plan([range(n)] * 4).report.hoisted for n in (3, 40)]
    assert hoisted == [0, 0]


def test_minibatches_with_and_without_split_types_take_turns():
    rng = np.random.default_rng(0)
    params = {
        "W": rng.normal(size=(3, 3)).astype(np.float32),
        "U": rng.normal(size=(3, 3)).astype(np.float32),
        "table": rng.normal(size=(7, 3)).astype(np.float32),
        "start": np.ones(3, np.float32),
    }
    found = eb.batch(chain, params=params, compiler=ALL_HOISTED)
    for words in ([[]], [[1, 2], [3]], [[], []], [[], [4]]):
        eb.verify(found, params, words, gradients=False)
        graph = found.graph(words)
        schedule = found.policy.schedule(graph.structure)
        running, divided = hoist(
            graph, schedule, found.states.default().planning.hoisted
        )
        check_schedule(divided, running.structure)
        assert running.num_nodes - graph.num_nodes == sum(map(len, words))


@eb.cell
def mixed(params, state, wide, narrow):
    """Its hoisted part outputs one vector per dtype."""
    state = jnp.tanh(params["U"] @ state + params["V"] @ narrow)
    return (state + params["W"] @ wide).astype(jnp.bfloat16)


@eb.cell
def narrow_alone(params, state, narrow):
    return jnp.tanh(params["U"] @ state + params["V"] @ narrow)


@eb.cell
def first(params):
    return params["start"]


def mixed_chain(params, length):
    # This cell's hoisted output shifts the rows of one dtype relative to the other's.
    state = narrow_alone(params, first(params), jnp.ones(4, jnp.bfloat16))
    for k in range(length):
        wide = np.arange(4, dtype=np.float32) + k
        state = mixed(params, state, wide, jnp.asarray(2 * wide, jnp.bfloat16))
    return state


def test_each_hoisted_vector_has_its_own_row():
    rng = np.random.default_rng(0)
    params = {
        name: jnp.asarray(rng.normal(size=(4, 4)) / 4, dtype)
        for name, dtype in (("W", "float32"), ("V", "bfloat16"), ("U", "bfloat16"))
    }
    params["start"] = jnp.ones(4, jnp.bfloat16)
    found = eb.batch(mixed_chain, compiler=ALL_HOISTED)
    eb.verify(found, params, [1, 3, 2])
    plan = found.plan([1, 3, 2])
    assert plan.report.hoisted == 9
    hoisted = [
        each
        for each in plan.shape.program.types.types
        if each.key.cell.endswith(".hoisted")
    ]
    assert [len(each.output_kinds) for each in hoisted] == [1, 2]


@pytest.mark.parametrize("after", [1, 2, 3])
def test_ctrl_c_while_types_are_divided_leaves_them_whole(after, monkeypatch):
    """After an interrupt, a type used to run as another type from then on."""
    own = eb.batch(run_inputs, params=make_params(), compiler=ALL_HOISTED)
    programs, add, added = minibatch(5), HoistedTable.add, 0

    def add_and_press(table, node_type):
        nonlocal added
        found = add(table, node_type)
        added += 1
        if added == after:
            signal.raise_signal(signal.SIGINT)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(HoistedTable, "add", add_and_press)
        with pytest.raises(KeyboardInterrupt):
            own.plan(programs)
    assert added >= after
    plan = own.plan(programs)
    split = plan.shape.program.types.split
    names = [each.key.cell for each in split.table]
    assert len(split.parts) == len(names) == len({*split.parts})
    for part, name in zip(split.parts, names, strict=True):
        recorded = split.recorded.types[part.type_id].key.cell
        assert name == recorded + {"whole": "", "rest": ""}.get(part.part, ".hoisted")
    assert str(own.explain(programs))
    assert own.decisions
