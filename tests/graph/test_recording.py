"""Recording: types, handles, parameters, external inputs and their errors."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb
from edbatch.graph import MISSING, TypeTable, merge, record
from edbatch.graph.parameters import abstract


@eb.cell
def leaf(params, word):
    return params["table"][word]


@eb.cell
def join(params, left, right):
    return jnp.tanh(left @ params["w"] + right)


@eb.cell
def halves(vector):
    return vector[:2], vector[2:]


PARAMS = {"table": jnp.ones((5, 4)), "w": jnp.ones((4, 4)), "layers": [{"w": 1.0}] * 2}


def tree_model(params, tree):
    if isinstance(tree, int):
        return leaf(params, tree)
    return join(params, *(tree_model(params, each) for each in tree))


def record_one(model, instance, params=PARAMS):
    return record(model, TypeTable(abstract(params)), [instance])


def test_a_tree_becomes_arrays():
    graph = record_one(tree_model, ((0, 3), 4))
    #       join 4
    #      /      \
    #   join 2   leaf 3
    #    /   \
    # leaf 0  leaf 1
    assert graph.node_type.tolist() == [0, 0, 1, 0, 1]
    assert graph.structure.operand_node.tolist() == [0, 1, 2, 3]
    assert graph.operand_start.tolist() == [0, 0, 0, 2, 2, 4]
    assert graph.external_rows.tolist() == [0, 1, 2]
    (pool,) = graph.externals.values()
    assert pool.tolist() == [0, 3, 4] and pool.dtype == np.int32
    assert graph.outputs.columns[0].tolist() == [4]
    assert [str(each.key) for each in graph.types.types] == ["leaf/0", "join/2"]


def test_the_parameter_path_is_part_of_the_type():
    def model(params, x):
        for layer in params["layers"]:
            x = scale(layer, x)
        return x

    @eb.cell
    def scale(layer, x):
        return layer["w"] * x

    graph = record_one(model, np.ones(3, np.float32))
    assert [str(t.key) for t in graph.types.types] == [
        "scale@layers.0/0",
        "scale@layers.1/1",
    ]


def test_shapes_and_dtypes_are_part_of_the_type():
    @eb.cell
    def double(x):
        return x * 2

    def model(params, x):
        return double(x)

    types = TypeTable(None)
    inputs = [np.ones(2, np.float32), np.ones(3, np.float32), np.ones(2, np.int32)]
    for each in inputs:
        record(model, types, [each, each])
    with pytest.raises(eb.RecordingError, match="outputs of different structure"):
        record(model, types, inputs)
    assert [str(each.key) for each in types.types] == [
        "double/0",
        "double/0~1",
        "double/0~2",
    ]


def test_exact_lists_are_typed_by_their_length():
    @eb.cell
    def total(items):
        return sum(items)

    def model(params, n):
        return total([leaf(params, k) for k in range(n)])

    graph = record(model, TypeTable(abstract(PARAMS)), [1, 2, 3, 2])
    assert len(graph.types) == 4  # leaf, and total over 1, 2 and 3 items


def test_an_array_read_by_many_nodes_is_kept_once():
    shared = np.ones((8, 8), np.float32)

    @eb.cell
    def look(image, k):
        return image[k]

    def model(params, n):
        return [look(shared, k) for k in range(n)]

    graph = record_one(model, 5)
    kind = graph.types.kinds.number((8, 8), np.float32)
    assert len(graph.externals[kind]) == 1


def test_an_array_that_its_owner_changes_is_recorded_as_it_was():
    @eb.cell
    def double(x):
        return x * 2

    def model(params, start):
        buffer = np.full(2, start, np.float32)
        results = [double(buffer), double(buffer)]
        for _ in range(2):
            buffer += 1
            results.append(double(buffer))
        return results

    graph = record(model, TypeTable(None), [1, 5])
    (pool,) = graph.externals.values()
    assert pool[:, 0].tolist() == [1, 2, 3, 5, 6, 7]
    assert graph.external_rows.tolist() == [0, 0, 1, 2, 3, 3, 4, 5]


def test_a_cell_made_in_a_loop_is_an_error():
    def model(params, count):
        for _ in range(count):

            @eb.cell
            def fresh(x):
                return x + 1

            result = fresh(1.0)
        return result

    with pytest.raises(eb.CellError, match="'fresh' was made anew 101 times"):
        record(model, TypeTable(None), [200])


def test_handles_know_shape_and_dtype():
    def model(params, word):
        handle = leaf(params, word)
        assert handle.shape == (4,) and handle.dtype == jnp.float32
        assert handle.ndim == 1
        first, second = halves(handle)
        assert "float32[2] from cell 'halves'" in repr(second)
        return first

    record_one(model, 1)


FORBIDDEN = {
    "arithmetic": lambda h: h + 1,
    "reflected arithmetic": lambda h: 2 * h,
    "comparison": lambda h: h > 0,
    "equality": lambda h: h == 0,
    "inequality": lambda h: h != 0,
    "indexing": lambda h: h[0],
    "unpacking": lambda h: (lambda a, b: a)(*h),
    "branch": lambda h: 1 if h else 2,
    "jnp": lambda h: jnp.tanh(h),
    "numpy": lambda h: np.asarray(h),
    "method": lambda h: h.sum(),
    "len": lambda h: len(h),
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_handle_has_no_value(name):
    def model(params, word):
        return FORBIDDEN[name](leaf(params, word))

    with pytest.raises(eb.RecordingError) as caught:
        record(model, TypeTable(abstract(PARAMS)), [1, 1])
    text = str(caught.value)
    assert "outside a cell" in text
    assert "from cell 'leaf'" in text or name == "jnp"
    assert "@eb.cell" in text
    assert re.search(r"test_recording\.py:\d+", text)
    assert caught.value.__notes__ == ["while recording instance 0 of the minibatch"]


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (
            lambda p: p["w"] * 2,
            r"arithmetic \(mul\) outside a cell .*params\['w'\] has",
        ),
        (
            lambda p: p["tabel"],
            r"have no 'tabel' \(test_recording.py:\d+\); did you mean 'table'",
        ),
        (lambda p: p["layers"][2], "have no '2'"),
        (lambda p: p.table, "have no 'table'"),
        (lambda p: p["w"][0], "indexed with .0. outside a cell"),
        (
            lambda p: jnp.sum(p["w"]),
            "applied to a handle or a parameter outside a cell",
        ),
        (lambda p: p["w"](1), "a module was called outside a cell"),
        (lambda p: bool(p["w"]), "branch on a parameter"),
        (lambda p: p["w"], "returns .*ParameterPath"),
        (lambda p: "text", "the model returns str; return a pytree of"),
    ],
)
def test_parameters_have_no_value(use, text):
    with pytest.raises(eb.RecordingError, match=text):
        record_one(lambda params, _: use(params), None)


def test_containers_of_parameters_behave_like_containers():
    def model(params, _):
        assert len(params["layers"]) == 2
        assert "w" in params and "v" not in params
        assert set(params) == set(PARAMS)
        assert [k for k, _ in params.items()] == list(PARAMS)
        assert params["layers"][0] is params["layers"][0]
        return leaf(params, 0)

    record_one(model, None)


def test_a_handle_from_another_recording_is_rejected():
    kept = []

    def model(params, word):
        kept.append(leaf(params, word))
        return join(params, kept[0], kept[-1])

    with pytest.raises(eb.RecordingError, match="handle from another recording"):
        record(model, TypeTable(abstract(PARAMS)), [1, 2])


def test_a_returned_handle_from_another_recording_is_rejected():
    kept = []

    def model(params, word):
        kept.append(leaf(params, word))
        return [kept[0]]

    with pytest.raises(eb.RecordingError, match="handle from another recording"):
        record(model, TypeTable(abstract(PARAMS)), [1, 2])


def test_a_cell_that_cannot_be_traced_is_named_with_its_shapes():
    @eb.cell
    def broken(params, vector):
        return vector @ params["table"]

    def model(params, word):
        return broken(params, leaf(params, word))

    with pytest.raises(
        eb.CellError, match=r"'broken' cannot be traced on inputs \(float32\[4\]\)"
    ):
        record_one(model, 1)


def test_a_shape_that_depends_on_data_is_an_error():
    @eb.cell
    def positive(vector):
        return vector[vector > 0]

    with pytest.raises(eb.CellError, match="shapes do not depend on values"):
        record_one(lambda params, w: positive(leaf(params, w)), 1)


def test_a_cell_without_outputs_is_an_error():
    @eb.cell
    def nothing(vector):
        return None

    with pytest.raises(eb.CellError, match="'nothing' returns no array"):
        record_one(lambda params, w: nothing(leaf(params, w)), 1)


def test_a_traced_external_input_is_an_error():
    @eb.cell
    def use(x):
        return x * 2

    with pytest.raises(eb.RecordingError, match="outside jit, grad and vmap"):
        jax.jit(lambda x: record_one(lambda params, y: use(y), x).num_nodes)(1.0)


def test_an_integer_too_large_for_int32_is_an_error():
    with pytest.raises(eb.RecordingError, match="2147483648, which does not fit int32"):
        record_one(tree_model, (1, 2**31))


@pytest.mark.parametrize(
    ("options", "function", "text"),
    [
        ({"padded": ("kids",)}, lambda items, mask: items, "no argument 'kids'"),
        ({"padded": ("items",)}, lambda items: items, "no keyword argument 'mask'"),
        ({"static": ("n",)}, lambda items: items, "no argument 'n'"),
    ],
)
def test_wrong_options_of_a_cell(options, function, text):
    with pytest.raises(eb.CellError, match=text):
        eb.cell(**options)(function)


@eb.cell(padded=("items",))
def pad_sum(items, mask):
    return jnp.where(mask[:, None], items, 0).sum(0)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (lambda h: ([],), "received an empty list"),
        (lambda h: (h[0],), "received Handle"),
        (lambda h: ([h[0], (h[0], h[1])],), "elements differ in structure"),
        (lambda h: ([h[0], h[1]],), "differ in shape"),
    ],
)
def test_wrong_padded_lists(arguments, text):
    def model(params, word):
        vector = leaf(params, word)
        return pad_sum(*arguments((vector, halves(vector)[0])))

    with pytest.raises(eb.CellError, match=text):
        record_one(model, 1)


def test_a_mask_given_by_hand_is_an_error():
    def model(params, word):
        return pad_sum([leaf(params, word)], mask=np.ones(1, bool))

    with pytest.raises(eb.CellError, match="received 'mask', which edbatch fills in"):
        record_one(model, 1)


def test_padded_lists_are_recorded_with_missing_operands():
    def model(params, n):
        return pad_sum([leaf(params, k) for k in range(n)])

    graph = record(model, TypeTable(abstract(PARAMS)), [3, 4])
    assert len(graph.types) == 2
    assert graph.operands.tolist() == [0, 1, 2, MISSING, 4, 5, 6, 7]
    assert graph.structure.operand_node.tolist() == [0, 1, 2, MISSING, 4, 5, 6, 7]


def test_fast_and_general_analysis_agree():
    """The first call of a type takes the general way, later ones the fast way."""

    @eb.cell
    def mixed(params, pairs, scale, index):
        return sum(a + b for a, b in pairs) * scale + params["table"][index]

    def model(params, word):
        a, b = leaf(params, word), leaf(params, word + 1)
        inputs = [(a, b), (b, a)], 0.5, 2
        fast = [mixed(params, *inputs), mixed(params, *inputs)]
        return [*fast, mixed(params=params, pairs=inputs[0], scale=0.5, index=2)]

    graph = record_one(model, 1)
    assert graph.operands.tolist() == [0, 1, 1, 0] * 3
    types = graph.node_type.tolist()
    assert types[2] == types[3]
    assert eb.verify(eb.batch(model), PARAMS, [1, 2]).max_output_error < 1e-6


def test_merging_equals_recording_together():
    trees = [((0, 1), 2), 3, (4, (1, (2, 2)))]
    types = TypeTable(abstract(PARAMS))
    together = record(tree_model, types, trees)
    merged = merge([record(tree_model, types, [each]) for each in trees])
    for name in ("node_type", "operands", "external_rows", "instance_nodes"):
        assert (getattr(together, name) == getattr(merged, name)).all()
    assert (together.outputs.columns[0] == merged.outputs.columns[0]).all()
    for kind, pool in together.externals.items():
        assert (merged.externals[kind] == pool).all()
    assert merged.num_values == together.num_values


def test_merging_outputs_whose_lists_were_empty():
    def model(params, n):
        return {"all": [{"x": leaf(params, k)} for k in range(n)], "n": leaf(params, n)}

    types = TypeTable(abstract(PARAMS))
    graphs = [record(model, types, [n]) for n in (0, 2, 0, 1)]
    merged = merge(graphs)
    together = record(model, types, [0, 2, 0, 1])
    assert merged.outputs.tree.skeleton == together.outputs.tree.skeleton
    assert [x.tolist() for x in merged.outputs.columns] == [
        x.tolist() for x in together.outputs.columns
    ]
    assert merged.outputs.lengths[0].tolist() == [0, 2, 0, 1]


def test_merging_recordings_of_two_models_is_an_error():
    one, other = (record_one(tree_model, 1) for _ in range(2))
    with pytest.raises(eb.PlanError, match="recording was made by another model"):
        merge([one, other])


def test_merging_nothing_is_an_error():
    with pytest.raises(eb.PlanError, match="at least one instance but is empty"):
        merge([])


def test_recording_a_chain_of_depth_100000():
    def model(params, depth):
        state = leaf(params, 0)
        for _ in range(depth):
            state = join(params, state, state)
        return state

    graph = record_one(model, 100_000)
    assert graph.num_nodes == 100_001
    assert graph.structure.depth.max() == 100_000


@pytest.mark.parametrize("make", [np.broadcast_to, lambda array, _: array.view()])
def test_what_can_change_through_its_base_is_copied(make):
    """A view may be read-only while the array that it shows is not."""
    array = np.zeros(3, np.float32)
    view = make(array, (2, 3))
    view.flags.writeable = False

    @eb.cell
    def total(params, x):
        return x.sum()

    def model(params, steps):
        sums = []
        for _ in range(steps):
            array[:] += 1
            sums.append(total(params, view))
        return sums

    graph = record_one(model, 3)
    (pool,) = graph.externals.values()
    assert [row.max() for row in pool] == [1, 2, 3]


def test_inner_lists_may_be_empty():
    """An empty list says nothing about what it would hold."""

    def model(params, lengths):
        return [[leaf(params, k) for k in range(each)] for each in lengths]

    types = TypeTable(abstract(PARAMS))
    first = record(model, types, [[0, 2], [1]])
    [kind] = types.types[0].output_kinds
    assert first.outputs.tree.skeleton == ("list", ("list", ("value", kind)))
    assert [each.tolist() for each in first.outputs.lengths] == [[2, 1], [0, 2, 1]]
    assert first.outputs.columns[0].tolist() == [0, 1, 2]
    both = merge([first, record(model, types, [[0], [], [1, 0]])])
    assert [each.tolist() for each in both.outputs.lengths] == [
        [2, 1, 1, 0, 2],
        [0, 2, 1, 0, 1, 0],
    ]
    assert both.outputs.columns[0].tolist() == [0, 1, 2, 3]


def test_elements_that_differ_are_no_list():
    def model(params, _, kind=tuple):
        state = leaf(params, 0)
        return kind([state, [], (state, state)])

    with pytest.raises(eb.RecordingError, match="return a tuple"):
        record_one(lambda params, _: model(params, _, list), 0)
    graph = record_one(model, 0)
    assert graph.outputs.tree.skeleton[0] == "node"
    assert [each.tolist() for each in graph.outputs.columns] == [[0], [0], [0]]


def test_parts_of_a_list_of_parameters():
    def model(params, vector):
        layers = params["layers"]
        assert layers[-1] is layers[1] and layers[0:1][0] is layers[0]
        assert [type(layers[1:]), type(params["pair"][:1])] == [list, tuple]
        return leaf_of(layers[-1], vector), leaf_of(layers[1], vector)

    @eb.cell
    def leaf_of(layer, vector):
        return layer["w"] * vector

    params = PARAMS | {"pair": (1.0, 2.0)}
    graph = record_one(model, np.ones(2, np.float32), params)
    assert [str(each.key) for each in graph.types.types] == ["leaf_of@layers.1/0"]
    with pytest.raises(eb.RecordingError, match=r"have no '-3'"):
        record_one(lambda params, _: params["layers"][-3], 0)


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("value", [[1, 2], np.ones(2), (1, [2])])
def test_constants_without_a_hash(value, by_name):
    @eb.cell(static=("factors",))
    def scale(params, word, factors):
        return params["table"][word] * factors[0]

    def model(params, word):
        if by_name:
            return scale(params, word, factors=value)
        return scale(params, word, value)

    with pytest.raises(eb.CellError, match=r"'scale' received .* 'factors' .*pass a"):
        record_one(model, 3)
