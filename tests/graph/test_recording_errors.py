"""Tests errors of recording."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from recorded_trees import PARAMS, halves, join, leaf, pad_sum, record_one, tree_model

import edbatch as eb
from edbatch.graph import TypeTable, merge, record
from edbatch.graph.parameter_structure import abstract
from edbatch.graph.parameters import ParameterPath


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


def test_cells_made_before_in_a_loop_are_none():
    def scale(k):
        return eb.cell(lambda x: x * k)

    cells = [scale(k) for k in range(120)]

    def model(params, count):
        result = 1.0
        for each in cells[:count]:
            result = each(result)
        return result

    graph = record(model, TypeTable(None), [120])
    assert graph.structure.num_nodes == 120


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
    assert re.search(r"test_recording_errors\.py:\d+", text)
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
            r"have no 'tabel' \(test_recording_errors.py:\d+\); did you mean 'table'",
        ),
        (lambda p: p["layers"][2], "have no '2'"),
        (lambda p: p.table, "have no 'table'"),
        (lambda p: p["w"][0], "indexed with .0. outside a cell"),
        (lambda p: p["w"][:, :2], r"indexed with .\(slice.* outside a cell"),
        (lambda p: p["w"][[0, 1]], r"indexed with .\[0, 1\]. outside a cell"),
        (lambda p: p["w"][np.arange(2)], r"indexed with .array.* outside a cell"),
        (lambda p: p["layers"][[0]], r"have no '\[0\]'"),
        (lambda p: p[{}], "have no '{}'"),
        (
            lambda p: jnp.sum(p["w"]),
            "applied to a handle or a parameter outside a cell",
        ),
        (lambda p: p["w"](1), "a module was called outside a cell"),
        (lambda p: bool(p["w"]), "branch on a parameter"),
        (lambda p: "text", "the model returns str; return a pytree of"),
    ],
)
def test_parameters_have_no_value(use, text):
    with pytest.raises(eb.RecordingError, match=text):
        record_one(lambda params, _: use(params), None)


def test_parameters_indexed_by_a_handle():
    with pytest.raises(eb.RecordingError, match=r"\['layers'\] was indexed.*eb.value"):
        record_one(lambda params, word: params["layers"][leaf(params, word)], 1)


@pytest.mark.parametrize("index", [jnp.int32(1), np.int64(-1), -1])
def test_layers_indexed_by_arrays_of_an_integer(index):
    layers = ParameterPath(abstract({"layers": [1.0, 2.0]}))["layers"]
    assert layers[index] is layers[1]


def test_a_dict_of_parameters_has_get():
    def model(params, word):
        assert params.get("absent") is None and params.get("absent", 3) == 3
        return leaf(params if params.get("table") is params["table"] else {}, word)

    record_one(model, 1)


def test_handles_are_formatted_as_text_alone():
    def model(params, word):
        state = leaf(params, word)
        assert f"{state}" == str(state)
        return f"{state:.3f}"

    with pytest.raises(eb.RecordingError, match=r"formatting with '.3f' .*eb.value"):
        record_one(model, 1)


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


@eb.cell(static=("power",))
def raised(state, power):
    return state**power


@eb.cell(padded=("states",))
def summed(states, mask):
    return jnp.sum(jnp.where(mask[:, None], states, 0), 0)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda p, h: join(p, h),
            r"'join' cannot be called on inputs \(float32\[4\]\)",
        ),
        (lambda p, h: leaf(p, 1, h), "takes 2 positional arguments but 3"),
        (lambda p, h: leaf(p, word=1, other=h), "unexpected keyword argument 'other'"),
        (lambda p, h: raised(h, h), "received Handle.* as static argument 'power'"),
        (lambda p, h: raised(h, p["w"]), r"received ParameterPath\(params\['w'\]\) as"),
        (lambda p, h: summed(h), r"received Handle; write \[...\] around a single"),
        (lambda p, h: summed([]), "received an empty list; .* call another cell"),
    ],
)
def test_calls_with_other_arguments_than_a_cell_takes(call, text):
    with pytest.raises(eb.CellError, match=text) as caught:
        record_one(lambda params, word: call(params, leaf(params, word)), 1)
    assert "do not depend on values" not in str(caught.value)


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

    message = "outside jit, grad and vmap, .* to have a gradient is a part of params"
    with pytest.raises(eb.RecordingError, match=message):
        jax.jit(lambda x: record_one(lambda params, y: use(y), x).num_nodes)(1.0)


def test_an_integer_too_large_for_int32_is_an_error():
    with pytest.raises(eb.RecordingError, match="2147483648, which does not fit int32"):
        record_one(tree_model, (1, 2**31))


def looking_tree_model(params, tree):
    state = tree_model(params, tree)
    eb.value(state)
    return state


@pytest.mark.parametrize("model", [tree_model, looking_tree_model])
@pytest.mark.parametrize("how", ["call", "record"])
@pytest.mark.parametrize("place", [0, 1, 3])
def test_an_integer_too_large_names_the_instance(place, how, model):
    instances = [(1, 2), 3, ((1, 2), 3), 4]
    instances[place] = (5, 2**40)
    batched = eb.batch(model if how == "call" else tree_model, params=PARAMS)
    with pytest.raises(eb.RecordingError, match="does not fit int32") as caught:
        batched(PARAMS, instances) if how == "call" else batched.graph(instances)
    assert caught.value.__notes__ == [
        f"while recording instance {place} of the minibatch"
    ]


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


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (lambda h: ([],), "received an empty list"),
        (lambda h: (h[0],), "received Handle"),
        (lambda h: ([h[0], (h[0], h[1])],), "elements differ in structure"),
        (lambda h: ([h[0], np.ones(4, np.float32)],), r"float32\[4\] that no cell"),
        (
            lambda h: ([h[0], h[1]],),
            r"differ .*: float32\[4\] from cell 'leaf', float32\[2\] from",
        ),
    ],
)
def test_wrong_padded_lists(arguments, text):
    def model(params, word):
        vector = leaf(params, word)
        return pad_sum(*arguments((vector, halves(vector)[0])))

    with pytest.raises(eb.CellError, match=text):
        record_one(model, 1)


@eb.cell(padded=("one", "other"))
def masks_in_between(one, one_mask, other, other_mask):
    return jnp.sum(one, 0) + jnp.sum(other, 0)


@eb.cell(padded=("one",))
def mask_by_name(one, *others, mask):
    return jnp.sum(one, 0) + sum(others)


def test_masks_come_behind_what_is_passed_by_position():
    vectors = [np.ones(2, np.float32)]
    text = (
        "called with 2 arguments by position .* takes the place of the mask 'one_mask'"
    )
    with pytest.raises(eb.CellError, match=text):
        record_one(lambda params, x: masks_in_between(x, x), vectors)
    with pytest.raises(eb.CellError, match=text):
        masks_in_between(vectors, vectors)
    record_one(lambda params, x: masks_in_between(one=x, other=x), vectors)
    record_one(lambda params, x: mask_by_name(x, *x, *x, *x), vectors)
    assert mask_by_name(vectors, *vectors * 3).tolist() == [4, 4]


def test_a_mask_given_by_hand_is_an_error():
    def model(params, word):
        return pad_sum([leaf(params, word)], mask=np.ones(1, bool))

    with pytest.raises(eb.CellError, match="received 'mask', which edbatch fills in"):
        record_one(model, 1)


def test_merging_recordings_of_two_models_is_an_error():
    one, other = (record_one(tree_model, 1) for _ in range(2))
    with pytest.raises(eb.PlanError, match="recording was made by another model"):
        merge([one, other])


def test_merging_nothing_is_an_error():
    with pytest.raises(eb.PlanError, match="at least one instance but is empty"):
        merge([])


def test_elements_that_differ_are_no_list():
    def model(params, _, kind=tuple):
        state = leaf(params, 0)
        return kind([state, [], (state, state)])

    with pytest.raises(eb.RecordingError, match="return a tuple"):
        record_one(lambda params, _: model(params, _, list), 0)
    graph = record_one(model, 0)
    assert graph.outputs.tree.skeleton[0] == "node"
    assert [each.tolist() for each in graph.outputs.columns] == [[0], [0], [0]]


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


def test_a_batched_function_inside_a_model_is_an_error():
    inner = eb.batch(lambda params, index: leaf(params, index), params=PARAMS)
    outer = eb.batch(lambda params, index: inner(params, [index]), params=PARAMS)
    calls = "a model calls one while it is recorded; call the function that was given"
    with pytest.raises(eb.PlanError, match=calls):
        outer(PARAMS, [0, 1])


class Scaler:
    """A class with a cell as an attribute, like a method."""

    @eb.cell
    def scaled(self, x):
        return 2 * x

    def __call__(self, params, x):
        return self.scaled(x)


def test_a_cell_is_no_method():
    with pytest.raises(eb.CellError, match="a cell cannot be a method: define it"):
        eb.batch(Scaler())(None, [1.0])
