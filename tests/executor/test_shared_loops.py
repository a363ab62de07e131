"""Tests types that differ in their parameters' path only and share loops."""

import pickle
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params
from layered_models import (
    ALL,
    DEPTH,
    OPTIONS,
    SIZES,
    WIDTH,
    batched,
    choices,
    families,
    make_mixture,
    make_params,
    minibatch,
    mixture,
    model,
    start,
    step,
    types_that_run,
)

import edbatch as eb
from edbatch.cell import HoistedTypes, shared_types
from edbatch.cell.members import Copies
from edbatch.cell.shared_types import pays
from edbatch.errors import ManyTypesWarning
from edbatch.stream.format import find_chunks

pytestmark = pytest.mark.usefixtures("quick_compiles")


@pytest.mark.parametrize("name", OPTIONS)
def test_outputs_and_gradients(name):
    expected = ALL | ({"project.hoisted": DEPTH} if name == "hoisted" else {})
    assert families(batched(name).plan(minibatch(1))) == expected
    found = eb.verify(batched(name), make_params(1), minibatch(1))
    assert found.max_gradient_error is not None


def test_one_type_runs_for_all_layers():
    alone = eb.Compiler(sharing="never")
    shared = batched("default")
    apart = eb.batch(model, "agenda", sizes=SIZES, compiler=alone, params=make_params())
    both = [each.plan(minibatch(2)) for each in (shared, apart)]
    cells = [[t.key.cell for t in types_that_run(plan)] for plan in both]
    assert sorted(set(cells[1])) == sorted(set(cells[0]))
    assert len(cells[0]) == len(set(cells[0]))
    assert len(cells[1]) >= DEPTH * len(ALL)
    # Sharing changes neither what policies see nor their batches.
    assert both[0].report.batches == both[1].report.batches


def test_chunks_name_the_layer_that_they_read():
    plan = batched("default").plan([([1, 2], [np.ones(WIDTH, np.float32)] * 2, [3, 1])])
    formats = plan.shape.program.formats()
    chunks = find_chunks(formats, plan.trips[: plan.num_steps])
    members = set()
    for loop, first in zip(chunks.loop, chunks.start, strict=False):
        record = formats[loop].read(plan.stream[first : first + formats[loop].length])
        assert (record.member is not None) == formats[loop].has_member
        members.add(record.member)
    assert members == {None, 1, 3}


def test_layers_that_come_later_join_without_a_compilation():
    own = eb.batch(model, "agenda", sizes=SIZES, params=make_params())
    words, vectors = [1, 2, 3], [np.ones(WIDTH, np.float32)] * 3
    first = own.plan([(words, vectors, [0, 1, 2, 3])])
    later = own.plan([(words, vectors, [0, 4, 2, 3])])
    assert later.shape == first.shape
    assert families(later) == ALL
    eb.verify(own, make_params(3), [(words, vectors, [4, 0, 4])])


def test_two_or_three_types_do_not_share():
    params = make_params(depth=3)
    own = eb.batch(model, "agenda", sizes=SIZES, params=params)
    assert families(own.plan(minibatch(depth=3))) == {}


def test_rows_that_are_used_again():
    planner = eb.Planner(reuse="always")
    own = eb.batch(model, "agenda", sizes=SIZES, planner=planner, params=make_params())
    assert families(own.plan(minibatch(3))) == ALL
    eb.verify(own, make_params(), minibatch(3), gradients=False)


def test_in_float64():
    with jax.enable_x64(True):
        params = make_params(dtype=np.float64)
        own = eb.batch(model, "agenda", sizes=SIZES, params=params)
        instances = [
            (words, [each.astype(np.float64) for each in vectors], layers)
            for words, vectors, layers in minibatch(4)
        ]
        assert families(own.plan(instances)) == ALL
        found = eb.verify(own, params, instances)
        assert found.max_output_error < 1e-12
        assert found.max_gradient_error < 1e-11


def test_arguments_that_are_traced():
    own, params = batched("default"), make_params(5)
    plan = own.plan(minibatch(5))
    kept = own(params, minibatch(5))
    traced = jax.jit(own.apply)(params, plan)
    for one, other in zip(jax.tree.leaves(kept), jax.tree.leaves(traced), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def test_coarse_programs_read_the_same_layers():
    own, params = batched("default"), make_params(6)
    plan = own.plan(minibatch(6))

    def total(params, plan):
        output = own.apply(params, plan)
        return sum(jnp.sin(each).sum() for each in jax.tree.leaves(output))

    fine, coarse = (
        jax.value_and_grad(total)(params, plan.in_tier(tier))
        for tier in ("fine", "coarse")
    )
    for one, other in zip(jax.tree.leaves(fine), jax.tree.leaves(coarse), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@eb.cell
def drop(layer, state, rng=None):
    state = jnp.tanh(layer["W"] @ state)
    return state if rng is None else state * jax.random.bernoulli(rng, 0.5, (WIDTH,))


def noisy(params, vector):
    state = start(vector)
    for layer in params["layers"]:
        state = drop(layer, state)
    return state


def test_random_numbers_are_those_of_layers_apart():
    params, key = make_params(), jax.random.key(3)
    vectors = list(np.random.default_rng(0).normal(size=(3, WIDTH)).astype(np.float32))
    for rng in (None, key):
        found = [
            eb.batch(noisy, params=params, compiler=eb.Compiler(sharing=word))(
                params, vectors, rng=rng
            )
            for word in ("auto", "never")
        ]
        np.testing.assert_allclose(*found, rtol=1e-6, atol=1e-6)


@eb.cell
def look_up(table, word):
    return table[word]


def languages(params, instance):
    language, word = instance
    return look_up(params["tables"][language], word)


@pytest.mark.parametrize(("rows", "shares"), [(8, True), (4096, False)])
def test_large_tables_that_are_looked_up_stay_apart(rows, shares):
    rng = np.random.default_rng(0)
    params = {"tables": list(rng.normal(size=(4, rows, 8)).astype(np.float32))}
    own = eb.batch(languages, params=params)
    instances = [(k % 4, k) for k in range(7)]
    assert families(own.plan(instances)) == ({"look_up": 4} if shares else {})
    eb.verify(own, params, instances)


@eb.cell
def look_up_twice(tables, word):
    return tables[0][word] + tables[1][word] + tables[0][0]


@pytest.mark.parametrize(("rows", "shares"), [(256, True), (257, False)])
def test_tables_that_a_chunk_would_copy_are_counted_together(rows, shares):
    rng = np.random.default_rng(0)
    params = rng.normal(size=(4, 2, rows, 8)).astype(np.float32)
    params = [list(each) for each in params]
    own = eb.batch(lambda p, x: look_up_twice(p[x[0]], x[1]), params=params)
    instances = [(k % 4, k) for k in range(7)]
    assert families(own.plan(instances)) == ({"look_up_twice": 4} if shares else {})
    eb.verify(own, params, instances)


@eb.cell
def translate(embedding, state):
    return jnp.tanh(state @ embedding)


def chosen_languages(params, instance):
    language, state = instance
    return translate(params[language], state)


def test_two_types_with_large_embeddings_stay_apart():
    params = [np.broadcast_to(np.float32(0), (64, 100_000))] * 2
    own = eb.batch(chosen_languages, params=params)
    state = np.ones(64, np.float32)
    assert families(own.plan([(0, state), (1, state)])) == {}


def test_types_share_where_they_save_more_than_is_stacked():
    """The stack has all 64 members of 8 MiB each; each type pays for 32 MiB of it."""
    params = [np.broadcast_to(np.float32(0), (64, 2**15))] * 64
    own = eb.batch(chosen_languages, params=params)
    state = np.ones(64, np.float32)
    with pytest.warns(ManyTypesWarning, match="too large to stack"):
        assert families(own.plan([(k, state) for k in range(15)])) == {}
    assert families(own.plan([(15, state)])) == {"translate": 64}
    assert families(own.plan([(0, state), (5, state)])) == {"translate": 64}


def test_what_pays():
    stack = 5 * 2**25
    assert not pays(3, Copies(0, 0))
    assert pays(4, Copies(0, 2**14))
    assert not pays(1000, Copies(0, 2**14 + 1))
    assert not pays(4, Copies(stack, 0))
    assert pays(5, Copies(stack, 0))
    assert not pays(5, Copies(stack + 1, 0))


def test_types_that_ran_apart_share_later(monkeypatch):
    params = make_params(4)
    vectors = list(np.random.default_rng(4).normal(size=(3, WIDTH)).astype(np.float32))

    def run(params, instance):
        layers, vector = instance
        state = start(vector)
        for k in layers:
            state = drop(params["layers"][k], state)
        return state

    monkeypatch.setattr(shared_types, "_STACKED", WIDTH * WIDTH * 4)
    own = eb.batch(run, params=params)
    first = [([0, 3, 1, 2], each) for each in vectors]
    second = [([4, 1, 0], each) for each in vectors]
    assert families(own.plan(first)) == {}
    eb.verify(own, params, first)
    assert families(own.plan(second)) == {"drop": DEPTH}
    for each in (second, first):
        eb.verify(own, params, each)


def test_many_types_that_cannot_share_are_warned_of_once():
    params = {"tables": list(np.zeros((9, 4096, 8), np.float32))}
    own = eb.batch(languages, params=params)
    instances = [(k, k) for k in range(9)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own.plan(instances[:5])
    with pytest.warns(ManyTypesWarning) as found:
        own.plan(instances)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own.plan(instances[::-1])
    [message] = [str(each.message) for each in found]
    assert "the 9 types of cell 'look_up' that read params['tables'][...] cannot" in (
        message
    )


@eb.cell
def bottleneck(params, state):
    return jnp.tanh(state @ params["down"]) @ params["up"]


def test_many_types_with_parameters_of_other_shapes_are_warned_of_once():
    def model(params, state):
        for each in params:
            state = bottleneck(each, state)
        return state

    widths = range(3, 12)
    own = eb.batch(
        model,
        params=[{"down": np.ones((4, w)), "up": np.ones((w, 4))} for w in widths],
    )
    state = np.ones(4, np.float32)
    with pytest.warns(ManyTypesWarning) as found:
        own.plan([state])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own.plan([state, state])
    [message] = [str(each.message) for each in found]
    assert (
        "cell 'bottleneck' has 8 types, many of which read" in message
    )  # and an external input's


@eb.cell
def both(own, other, state):
    return jnp.tanh(own["W"] @ state + other["U"] @ state)


@eb.cell
def whole(params, own, state):
    return jnp.tanh(own["W"] @ state + params["layers"][0]["U"] @ state)


def test_calls_that_read_several_layers_stay_apart():
    def skip(params, vector):
        state = start(vector)
        for k in range(DEPTH):
            state = both(params["layers"][k], params["layers"][k - 1], state)
            state = whole(params, params["layers"][k], state)
        return state

    vectors = list(np.random.default_rng(0).normal(size=(3, WIDTH)).astype(np.float32))
    own = eb.batch(skip, params=make_params())
    assert families(own.plan(vectors)) == {}
    eb.verify(own, make_params(), vectors)


def test_members_are_those_of_equal_shapes():
    params = make_params()
    odd = {"W": np.ones((WIDTH, WIDTH), np.float32)}
    params["layers"] = [odd, *params["layers"], odd]

    def some(params, vector):
        state = start(vector)
        for k in (1, 4, 2, 3, 5):
            state, _ = step(params["layers"][k], state, state)
        return state

    vectors = list(np.random.default_rng(0).normal(size=(3, WIDTH)).astype(np.float32))
    own = eb.batch(some, params=params)
    assert families(own.plan(vectors)) == {"step": DEPTH}
    eb.verify(own, params, vectors)


def test_parts_of_a_dict_below_which_the_layer_stands():
    params = {
        "blocks": {
            f"block{k}": {"own": layer}
            for k, layer in enumerate(make_params()["layers"])
        }
    }

    def chain(params, vector):
        state = start(vector)
        for name in ("block3", "block0", "block2", "block4", "block1", "block3"):
            state, _ = step(params["blocks"][name]["own"], state, state)
        return state

    vectors = list(np.random.default_rng(0).normal(size=(3, WIDTH)).astype(np.float32))
    own = eb.batch(chain, params=params)
    assert families(own.plan(vectors)) == {"step": DEPTH}
    eb.verify(own, params, vectors)


def count_loops(jaxpr):
    """Number of loops and equations of a jaxpr, inner ones included."""
    loops = equations = 0
    for eqn in jaxpr.eqns:
        loops += eqn.primitive.name in ("while", "scan")
        equations += 1
        for inner in jaxprs_in_params(eqn.params):
            more = count_loops(inner)
            loops, equations = loops + more[0], equations + more[1]
    return loops, equations


def program_size(depth, sharing, gradient):
    """Number of loops and equations in the program of a model of many layers."""
    params = make_params(depth=depth)
    compiler = eb.Compiler(sharing=sharing, slices="never")
    own = eb.batch(model, "agenda", sizes=SIZES, compiler=compiler, params=params)
    words, vectors = [1, 2], [np.ones(WIDTH, np.float32)] * 2
    plan = own.plan([(words, vectors, list(range(depth)))])

    def total(params):
        return own.apply(params, plan)["top"].sum()

    function = jax.grad(total) if gradient else total
    return count_loops(jax.make_jaxpr(function)(params).jaxpr)


@pytest.mark.parametrize("gradient", [False, True])
def test_a_program_does_not_grow_with_the_number_of_layers(gradient):
    (few, short), (many, long) = (program_size(n, "auto", gradient) for n in (4, 24))
    assert many == few
    # Each layer still adds equations: its three arrays are stacked for each of five
    # cells, and their gradients are unstacked.
    assert long - short <= 20 * 3 * 5 * (5 if gradient else 1)
    apart = program_size(4, "never", gradient)
    assert apart[0] > few + 3 * 5 - 5
    assert apart[1] > 2 * short


@pytest.mark.parametrize("function", [model, mixture])
def test_types_of_a_pickle_are_made_again(function):
    params, instances = make_params(), minibatch(2)
    if function is mixture:
        params, instances = make_mixture(), choices()
    compiler = eb.Compiler(hoisting="always")
    own = eb.batch(function, "agenda", sizes=SIZES, compiler=compiler, params=params)
    plan = own.plan(instances)
    known = plan.shape.program.types.split
    _, (recorded, (how, _), parts, *rest) = known.__reduce__()
    again = HoistedTypes(recorded, **how._asdict())
    again._restore(parts, *rest)
    assert again.parts == known.parts
    graph = own.graph(instances)
    assert (again.node_members(graph) == known.node_members(graph)).all()
    batches = np.unique(graph.node_type)
    for one, other in zip(
        again.decide_and_place(batches, batches + 1),
        known.decide_and_place(batches, batches + 1),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)
    sizes = [x.family and x.family.size for x in again.table.types]
    assert sizes == [x.family and x.family.size for x in known.table.types]
    for k, part in enumerate(parts):
        assert again.place(part) == k
        assert HoistedTypes(recorded).place(part) >= 0


@eb.cell
def expert(params, x):
    return jnp.tanh(params["w"] @ x)


def chosen(params, instance):
    return expert(params["experts"][instance[0]], instance[1])


def test_plans_name_the_same_member_whatever_the_order_of_keys():
    """JAX sorts the keys of dicts, as in the first step of training."""
    rng = np.random.default_rng(0)
    names = ["d", "c", "b", "a", "e"]
    weights = {
        name: {"w": rng.normal(size=(WIDTH, WIDTH)).astype(np.float32)}
        for name in names
    }
    trained = {"experts": {name: weights[name] for name in sorted(names)}}
    instances = [(name, rng.normal(size=WIDTH).astype(np.float32)) for name in names]
    first, other = (
        eb.batch(chosen, params=each) for each in ({"experts": weights}, trained)
    )
    plan = first.plan(instances)
    assert families(plan) == {"expert": 5}
    expected = [chosen(trained, each) for each in instances]
    for function in (first, other):
        for given in (plan, pickle.loads(pickle.dumps(plan))):
            found = function.apply(trained, given)
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@eb.cell
def gate(layer, shared, x):
    return jnp.tanh(shared["w"] @ x)


@pytest.mark.parametrize("layers", [3, 5])
def test_a_family_that_reads_nothing_of_its_members(layers):
    """For example a whole layer is passed, but the cell uses only shared parameters."""

    def model(params, x):
        for layer in params["layers"]:
            x = gate(layer, params["shared"], x)
        return x

    rng = np.random.default_rng(0)
    arrays = rng.normal(size=(layers + 1, WIDTH, WIDTH)).astype(np.float32)
    *own, shared = ({"w": jnp.asarray(each)} for each in arrays)
    params = {"layers": own, "shared": shared}
    found = eb.verify(eb.batch(model), params, list(arrays[0, :3]))
    assert found.max_gradient_error is not None


@pytest.mark.parametrize("first", [True, False])
def test_a_minibatch_without_nodes(first):
    """The types of the model share loops before the minibatch, or only after it."""

    @eb.cell
    def layer(params, x):
        return jnp.tanh(params @ x)

    def stack(params, count):
        h = np.ones(4, np.float32)
        for k in range(count):
            h = layer(params[k], h)
        return [h] if count else []

    params = [jnp.eye(4) * (0.5 + k / 8) for k in range(8)]
    batched = eb.batch(stack, sizes=SIZES)
    if not first:
        eb.verify(batched, params, [8, 0, 3])
    nothing = batched(params, [0, 0])
    assert nothing.lengths.tolist() == [0, 0]
    eb.verify(batched, params, [0, 8])
