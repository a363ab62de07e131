"""Tests nodes' keys: in recordings, in merged recordings, and unbatched."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb
from edbatch.graph import TypeTable, merge, record
from edbatch.graph.merge import at_places
from edbatch.graph.node_keys import is_key

KEY = jax.random.key(3)


@eb.cell
def draw(x, rng):
    return x + jax.random.normal(rng, x.shape)


@eb.cell
def plain(x):
    return 2 * x


def model(params, count):
    state = plain(np.float32([count]))
    for _ in range(count):
        state = draw(plain(state))
    return state


def numbers(graph):
    """Instance and call number of each node that takes a key, in node order."""
    (kind,) = [k for k in graph.externals if is_key(graph.types.avals[k].dtype)]
    return graph.externals[kind].tolist()


def test_keys_are_numbered_by_instance_and_call():
    graph = record(model, TypeTable(None), [2, 0, 1, 3])
    assert numbers(graph) == [[0, 0], [0, 1], [2, 0], [3, 0], [3, 1], [3, 2]]
    assert [str(each) for each in graph.types.avals] == [
        "float32[1]",
        "key<fry>[]",
    ]


def test_merging_numbers_the_instances_anew():
    types = TypeTable(None)
    parts = [record(model, types, each) for each in ([2, 0], [1], [3])]
    whole = record(model, types, [2, 0, 1, 3])
    merged = merge(parts)
    assert numbers(merged) == numbers(whole)
    np.testing.assert_array_equal(merged.external_rows, whole.external_rows)
    assert numbers(parts[2]) == [[0, 0], [0, 1], [0, 2]]  # unchanged
    assert numbers(merge([parts[1]] * 3)) == [[0, 0], [1, 0], [2, 0]]


def test_a_part_of_a_minibatch_draws_as_the_whole():
    batched = eb.batch(model, params=())
    whole = batched((), [2, 3, 1, 2], rng=KEY)
    part = at_places(batched.graph([1, 2]), [2, 0])
    assert numbers(part) == [[2, 0], [0, 0], [0, 1]]
    found = batched((), [part], rng=KEY)
    np.testing.assert_allclose(found, whole[np.array([2, 0])], rtol=1e-6)
    assert numbers(batched.graph([1, 2])) == [[0, 0], [1, 0], [1, 1]]


def test_calls_of_one_type_need_one_analysis():
    @eb.cell(static=("scale",), padded=("items",))
    def total(scale, items, mask, *, rng):
        return scale * jnp.where(mask, items, 0).sum() + jax.random.normal(rng)

    def of_all_kinds(params, count):
        first = plain(1.0)
        values = [total(2, [first]), total(scale=2, items=[first]), total(2, [1.0])]
        return values * count

    graph = record(of_all_kinds, TypeTable(None), [1, 2])
    assert [str(each.key) for each in graph.types.types] == [
        "plain/0",
        "total/1",
        "total/1~1",  # named arguments
        "total/0",
    ]
    assert numbers(graph) == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]


def test_unbatched_calls_draw_by_the_keys_of_the_context():
    with eb.cell_keys(KEY, instance=2):
        found = [draw(np.zeros(2, np.float32)) for _ in range(2)]
    own = jax.random.fold_in(KEY, 2)
    for k, each in enumerate(found):
        expected = jax.random.normal(jax.random.fold_in(own, k), (2,))
        np.testing.assert_array_equal(each, expected)
    with eb.cell_keys(jax.random.key_data(KEY), instance=2):
        np.testing.assert_array_equal(draw(np.zeros(2, np.float32)), found[0])


def test_a_call_that_fails_takes_no_key():
    def trying(params, size):
        with pytest.raises((TypeError, eb.CellError)):
            shifted(np.zeros(2, np.float32))
        return draw(np.zeros(2, np.float32))

    @eb.cell
    def shifted(x, rng):
        return x + jax.random.normal(rng, (3,))

    with eb.cell_keys(KEY):
        found = trying(None, 2)
        second = draw(np.zeros(2, np.float32))
    with eb.cell_keys(KEY):
        for each in found, second:
            np.testing.assert_array_equal(draw(np.zeros(2, np.float32)), each)
    batched = eb.batch(trying)
    np.testing.assert_array_equal(batched(None, [2], rng=KEY)[0], found)
    assert eb.verify(batched, None, [2, 3], rng=KEY).max_output_error == 0


def test_a_key_may_be_passed_to_a_cell():
    x = np.zeros(2, np.float32)
    expected = jax.random.normal(KEY, (2,))
    with eb.cell_keys(jax.random.key(9)):
        for each in (draw(x, KEY), draw(x, rng=KEY), draw(x=x, rng=KEY)):
            np.testing.assert_array_equal(each, expected)


def test_a_raw_key_is_an_input_like_any_other():
    def model(params, raw):
        return draw(np.zeros(2, np.float32), rng=raw), draw(np.ones(2, np.float32))

    raws = [np.uint32([1, 2]), np.uint32([3, 4])]
    batched = eb.batch(model, params=())
    eb.verify(batched, (), raws, rng=KEY)
    own, _ = batched((), raws, rng=KEY)
    np.testing.assert_allclose(own[1], jax.random.normal(raws[1], (2,)), rtol=1e-6)


def test_a_key_of_its_own_is_withheld_by_none():
    @eb.cell
    def maybe(x, rng=None):
        return x if rng is None else x + 1

    batched = eb.batch(lambda params, x: (maybe(x), maybe(x, rng=None)))
    one, other = batched((), [1.0, 2.0], rng=KEY)
    assert (one.tolist(), other.tolist()) == ([2.0, 3.0], [1.0, 2.0])


def test_a_cell_without_a_key():
    with pytest.raises(eb.CellError, match=r"'draw' takes a key, 'rng', but this call"):
        draw(np.zeros(2, np.float32))
    message = r"rng takes one key of .* received str;"
    with pytest.raises(eb.CellError, match=message), eb.cell_keys("seed"):
        pass


def test_contexts_end():
    with eb.cell_keys(KEY):
        with eb.cell_keys(KEY):
            first = draw(np.zeros(2, np.float32))
        np.testing.assert_array_equal(draw(np.zeros(2, np.float32)), first)
    with pytest.raises(eb.CellError, match="'draw' takes a key"):
        draw(np.zeros(2, np.float32))


def test_rng_comes_last():
    with pytest.raises(eb.CellError, match=r"cell 'early' has 'x' behind it; make"):

        @eb.cell
        def early(params, rng, x):
            return x


def test_typed_keys_are_no_inputs():
    def model(params, x):
        return draw(np.zeros(2, np.float32), rng=KEY)

    with pytest.raises(eb.CellError, match=r"cell 'draw' received a key at test_node"):
        record(model, TypeTable(None), [1])

    @eb.cell
    def split(rng):
        return jax.random.split(rng)

    with pytest.raises(eb.CellError, match="cell 'split' returns a key"):
        record(lambda params, x: split(), TypeTable(None), [1])


def test_typed_keys_are_no_outputs():
    with pytest.raises(eb.RecordingError, match="the model returns PRNGKeyArray"):
        record(lambda params, x: (plain(x), KEY), TypeTable(None), [1.0])
