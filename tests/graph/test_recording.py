"""Tests recording: types, handles, parameters and external inputs."""

import jax.numpy as jnp
import numpy as np
import pytest
from recorded_trees import PARAMS, halves, join, leaf, pad_sum, record_one, tree_model

import edbatch as eb
from edbatch.graph import MISSING, TypeTable, merge, record
from edbatch.graph.parameter_structure import abstract


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
    outputs = r"outputs of different structure.* float32\[2\] and float32\[3\];"
    with pytest.raises(eb.RecordingError, match=outputs):
        record(model, types, inputs)
    assert [str(each.key) for each in types.types] == [
        "double/0",
        "double/0~1",
        "double/0~2",
    ]


def test_messages_name_shapes_and_dtypes_of_outputs():
    @eb.cell
    def double(x):
        return x * 2

    def model(params, kind):
        x = np.ones(2, kind)
        return {"list": [double(x), {"number": x}] if kind == "int32" else double(x)}

    elements = r"here they are int32\[2\] and \{number: input int32\[2\]\}; return a"
    with pytest.raises(eb.RecordingError, match=elements):
        record(model, TypeTable(None), ["int32"])
    types = TypeTable(None)
    kept = [record(model, types, [each]) for each in ("float32", jnp.bfloat16)]
    with pytest.raises(eb.RecordingError, match=r"float32\[2\]\} and \{list: bfl"):
        merge(kept)


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


def test_handles_know_shape_and_dtype():
    def model(params, word):
        handle = leaf(params, word)
        assert handle.shape == (4,) and handle.dtype == jnp.float32
        assert handle.ndim == 1
        first, second = halves(handle)
        assert "float32[2] from cell 'halves'" in repr(second)
        return first

    record_one(model, 1)


def test_containers_of_parameters_behave_like_containers():
    def model(params, _):
        assert len(params["layers"]) == 2
        assert "w" in params and "v" not in params
        assert set(params) == set(PARAMS)
        assert [k for k, _ in params.items()] == list(PARAMS)
        assert params["layers"][0] is params["layers"][0]
        return leaf(params, 0)

    record_one(model, None)


def test_padded_lists_are_recorded_with_missing_operands():
    def model(params, n):
        return pad_sum([leaf(params, k) for k in range(n)])

    graph = record(model, TypeTable(abstract(PARAMS)), [3, 4])
    assert len(graph.types) == 2
    assert graph.operands.tolist() == [0, 1, 2, MISSING, 4, 5, 6, 7]
    assert graph.structure.operand_node.tolist() == [0, 1, 2, MISSING, 4, 5, 6, 7]


def test_fast_and_general_analysis_agree():
    """A type's first call takes the general path, later calls the fast path."""

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


def test_recording_a_chain_of_depth_100000():
    def model(params, depth):
        state = leaf(params, 0)
        for _ in range(depth):
            state = join(params, state, state)
        return state

    graph = record_one(model, 100_000)
    assert graph.num_nodes == 100_001
    assert graph.structure.depth.max() == 100_000


class Foreign:
    """NumPy memory exposed through another library's interface."""

    def __init__(self, array):
        self.array = array
        self.__array_interface__ = array.__array_interface__


VIEWS = {
    "broadcast": lambda array: np.broadcast_to(array, (2, 3)),
    "view": lambda array: array.view(),
    "windows": lambda array: np.lib.stride_tricks.sliding_window_view(array, 2),
    "strides": lambda array: np.lib.stride_tricks.as_strided(array, (2,), (4,)),
    "foreign": lambda array: np.asarray(Foreign(array)),
    "dlpack": np.from_dlpack,
    "buffer": lambda array: np.frombuffer(array, np.float32),
    "bytes of it": lambda array: np.asarray(memoryview(array).toreadonly()),
}


@pytest.mark.parametrize("make", VIEWS.values(), ids=VIEWS)
def test_what_can_change_through_its_base_is_copied(make):
    """A view may be read-only while its base array is not."""
    array = np.zeros(3, np.float32)
    view = make(array)
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


def test_files_in_memory_can_change(tmp_path):
    path = tmp_path / "rows"
    np.zeros(3, np.float32).tofile(path)
    writer = np.memmap(path, np.float32, "r+")
    reader = np.memmap(path, np.float32, "r")
    total = eb.cell(lambda params, x: x.sum())

    def model(params, steps):
        sums = []
        for _ in range(steps):
            writer[:] += 1
            sums.append(total(params, reader))
        return sums

    (pool,) = record_one(model, 3).externals.values()
    assert [row.max() for row in pool] == [1, 2, 3]


def test_inner_lists_may_be_empty():
    """An empty list says nothing about the type of its elements."""

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
