"""Recording distinguishes everything that matters to a call."""

import dataclasses
import gc
import pickle
import weakref
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb
from edbatch.cell.jaxpr import equation_key, trace
from edbatch.graph.constants import structure_key
from edbatch.graph.tape import Tape

pytestmark = pytest.mark.usefixtures("quick_compiles")

double = eb.cell(lambda x: 2 * x, name="double")
triple = eb.cell(lambda x: 3 * x, name="triple")
scale = eb.cell(lambda params, x: params * x, name="scale")


@partial(jax.tree_util.register_dataclass, data_fields=["x"], meta_fields=["n"])
@dataclasses.dataclass
class Box:
    x: Any
    n: Any


def same(found, expected):
    """Compares values and dtypes with the unbatched model's."""
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == jnp.asarray(other).dtype
        np.testing.assert_array_equal(one[0], other)


@pytest.mark.parametrize(
    "compare",
    [
        lambda each: each == 1,
        lambda each: each != 0,
        lambda each: each in (1, 2),
        lambda each: 1 == each,  # noqa: SIM300
        lambda each: each == np.float32(1),
        lambda each: each is None or each == [1],
    ],
)
def test_a_branch_on_a_parameter_is_refused(compare):
    """The comparison used to be silently False."""

    def model(params, x):
        return double(x) if compare(params["mode"]) else triple(x)

    with pytest.raises(eb.RecordingError, match=r"a comparison \(==, !=, in\) outside"):
        eb.batch(model, params={"mode": 1}).plan([1.0])


def test_parts_of_parameters_are_compared_by_their_paths():
    def model(params, x):
        assert params["a"] == params["a"] and params["a"] != params["b"]
        assert params["b"] in [params["b"]] and {params["a"]: 3}[params["a"]] == 3
        return scale(params["a"], x)

    assert eb.batch(model)({"a": 2.0, "b": 3.0}, [1.0]).tolist() == [2]


def test_an_attribute_that_parameters_lack():
    class Layer:
        pass

    def model(params, x):
        bias = getattr(params["layer"], "bias", None)
        assert not hasattr(params["layer"], "gain")
        x = scale(params["layer"]["w"], x)
        return x if bias is None else scale(bias, x)

    params = {"layer": {"w": 2.0}}
    assert eb.batch(model)(params, [1.0]).tolist() == [2]
    with pytest.raises(eb.RecordingError, match=r"have no 'bias' .*'w'"):
        eb.batch(lambda params, x: scale(params["layer"].bias, x))(params, [1.0])


def test_static_fields_that_python_takes_for_equal():
    divide = eb.cell(lambda b: b.x // b.n if isinstance(b.n, int) else b.x / b.n)

    def model(params, x):
        return divide(Box(x, 2.0)), divide(Box(x, 2)), divide(Box(x, True))

    found = eb.batch(model, params=())((), [7.0])
    same(found, (np.float32(3.5), np.float32(3), np.float32(7)))


def test_zeros_of_both_signs_in_static_fields():
    sign = eb.cell(lambda b: jnp.copysign(1.0, b.n) * b.x)

    def model(params, x):
        return sign(Box(x, 0.0)), sign(Box(x, -0.0)), sign(Box(x, (0.0, [1])[0]))

    found = eb.batch(model, params=())((), [3.0])
    same(found, (np.float32(3), np.float32(-3), np.float32(3)))


def test_keys_of_structures():
    one, other = (jax.tree.structure(Box(1, n)) for n in (2, 2.0))
    assert one == other and structure_key(one) != structure_key(other)
    for tree in ({"a": 1}, [(1, None)], Box(1, [2])):
        treedef = jax.tree.structure(tree)
        assert structure_key(treedef) is treedef
    deep = [jax.tree.structure({"a": [Box(1, n)]}) for n in (1, True)]
    assert structure_key(deep[0]) != structure_key(deep[1])


@dataclasses.dataclass(frozen=True)
class Scale:
    n: Any

    def __call__(self, x):
        return x * self.n


def test_functions_that_python_takes_for_equal():
    two, both = eb.cell(Scale(2), name="a"), eb.cell(Scale(2.0), name="b")
    again = eb.cell(Scale(2), name="a")

    def model(params, x):
        return two(x), both(x), again(x)

    batched = eb.batch(model, params=())
    same(batched((), [3]), (np.int32(6), np.float32(6), np.int32(6)))


def test_functions_without_a_hash():
    class Plain:
        __hash__ = None

        def __call__(self, x):
            return x

    with pytest.raises(eb.CellError, match="received Plain, a callable that is not h"):
        eb.cell(Plain())
    call = eb.cell(lambda f, x: f(x), name="call")
    with pytest.raises(eb.CellError, match=r"'call' received Plain as an argument"):
        eb.batch(lambda params, x: call(Plain(), x), params=()).plan([1.0])


def test_padded_elements_without_arrays():
    count = eb.cell(lambda x, items, mask: x + mask.sum(), padded=("items",))
    with pytest.raises(eb.CellError, match=r"'items' whose elements hold no array"):
        eb.batch(lambda params, x: count(x, [(), ()]), params=()).plan([1.0])


more = eb.cell(lambda a, *xs, n: a * n + sum(xs), static=("n",), name="more")


def test_a_static_argument_behind_others():
    """Any of the other arguments used to be mistaken for it."""

    def model(params, x):
        one = double(x)
        return more(one, one, one, n=2), more(one, x, 3.0, n=3), more(one, n=4)

    batched = eb.batch(model, params=())
    same(batched((), [1.0]), model((), 1.0))
    eb.verify(batched, (), [1.0, 2.0])
    names = [each.key.cell for each in batched.types.types]
    batched.plan([5.0, 6.0])
    assert [each.key.cell for each in batched.types.types] == names


def test_a_padded_argument_behind_others():
    def function(a, *xs, items, mask):
        return a + sum(xs) + jnp.where(mask, items, 0).sum()

    total = eb.cell(function, padded=("items",))

    def model(params, x):
        one = double(x)
        return total(one, one, x, items=[one, one, one]), total(one, items=[one])

    batched = eb.batch(model, params=())
    same(batched((), [1.0]), model((), 1.0))


@pytest.mark.parametrize("low", [jnp.bfloat16, jnp.float16])
def test_numbers_behind_stars_are_strong_in_both_ways(low):
    behind = eb.cell(lambda p, *xs: p * xs[1])
    named = eb.cell(lambda p, **k: p * k["s"])

    def model(params, x):
        return behind(params, 3.0, 2.1), named(params, s=3.1), behind(params, x, x)

    params = jnp.asarray(1.5, low)
    batched = eb.batch(model, params=params)
    expected = model(params, 2.5)
    assert [each.dtype for each in expected] == [jnp.float32] * 3
    same(batched(params, [2.5]), expected)
    eb.verify(batched, params, [2.5, 3.5])


@pytest.mark.parametrize("toggle", [False, True])
def test_read_only_views_of_what_others_write(toggle):
    memory = bytearray(np.arange(4, dtype=np.float32).tobytes())
    whole = memoryview(memory)
    view = np.frombuffer(memory if toggle else whole.toreadonly(), np.float32)
    view.flags.writeable = False
    copy = eb.cell(lambda a: a * 1, name="copy")

    def model(params, number):
        memory[:4] = np.float32(number).tobytes()
        return copy(view)

    found = eb.batch(model)(None, [1, 2, 3])
    assert found[:, 0].tolist() == [1, 2, 3]


@pytest.mark.parametrize("size", [3, 1023, 1024, 5001])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, jnp.bfloat16])
@pytest.mark.parametrize("step", [1, -1])
def test_large_arrays_that_are_written_between_calls(size, dtype, step):
    array = np.zeros(size, dtype)[::step]
    last = eb.cell(lambda a: a[-1], name="last")

    def model(params, number):
        first = last(array)
        array[-1] = number
        second = last(array)
        return first, second, last(array)

    batched = eb.batch(model)
    first, second, third = batched(None, [1, 2, 2, 5])
    assert first.tolist() == [0, 1, 2, 2]
    assert second.tolist() == third.tolist() == [1, 2, 2, 5]
    array[-1] = 0
    graph = batched.graph([1, 2, 2, 5])
    assert [len(pool) for pool in graph.externals.values() if pool.ndim == 2] == [4]


def test_wide_integers_beside_arrays():
    mix = eb.cell(lambda a: a + 0, name="mix")
    with jax.enable_x64(True):
        batched = eb.batch(lambda params, x: mix(x), params=())
        found = batched((), [np.array(2**53 + 1), 5])
        assert found.tolist() == [2**53 + 1, 5]
        with pytest.raises(eb.EdbatchError, match=str(2**63)):
            batched((), [np.array(2**53 + 1), 2**63])


SMALL = ["int8", "int16", "uint8", "uint16", "uint32", "float16"]


@pytest.mark.parametrize("dtype", SMALL)
def test_scalars_of_numpy(dtype):
    step = eb.cell(lambda a, x: a[x] if x.dtype.kind in "iu" else a[0] + x)
    table = np.arange(5, dtype=np.float32)
    kind = np.dtype(dtype).type

    def model(params, number):
        return step(table, kind(number)), step(table, number)

    batched = eb.batch(model)
    found = batched(None, [1, 2, 3])
    for one, number in zip(zip(*found, strict=True), [1, 2, 3], strict=True):
        np.testing.assert_allclose(one, number, 1e-3)


def test_recordings_leave_no_tape_to_the_garbage_collector():
    tapes = []
    own = Tape.__init__

    def noted(self, *arguments, **named):
        own(self, *arguments, **named)
        tapes.append(weakref.ref(self))

    def model(params, x):
        if x > 3:
            raise ValueError("no such number")
        return scale(params["w"], x), params["z"]

    batched = eb.batch(model, params={"w": 2.0, "z": 3.0})
    gc.collect()
    gc.disable()
    Tape.__init__ = noted
    try:
        for _ in range(3):
            batched.record(1.0)
        assert tapes and not any(each() for each in tapes)
    finally:
        Tape.__init__ = own
        gc.enable()


@dataclasses.dataclass(eq=False)
class Shifted:
    """A layer compared by identity, like most objects."""

    shifts: Any
    other: Any = None

    def __call__(self, params, x):
        return params * x + self.shifts[0]


@dataclasses.dataclass(frozen=True)
class Named:
    """A layer compared by its name, with one field that may be unset."""

    name: str
    scale: float = dataclasses.field(init=False)

    def __call__(self, params, x):
        return params * x + len(self.name)

    def __eq__(self, other):
        return isinstance(other, Named) and self.name == other.name

    def __hash__(self):
        return hash(self.name)


def in_a_circle(shift):
    one, other = Shifted((shift,)), Shifted((9.0,))
    one.other, other.other = other, one
    return one


LAYERS = {
    "a list": (Shifted([1.0]), Shifted([2.0])),
    "an array": (Shifted(np.ones(2)), Shifted(np.full(2, 2.0))),
    "a circle": (in_a_circle(1.0), in_a_circle(2.0)),
    "an attribute that is not set": (Named("a"), Named("ab")),
}
called = eb.cell(lambda params, layer, x: layer(params, x), name="called")
static = eb.cell(
    lambda params, layer, x: layer(params, x), name="static", static=("layer",)
)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("way", ["cells", "arguments", "static", "fields"])
def test_dataclasses_whose_fields_tell_nothing_are_told_by_themselves(name, way):
    one, two = LAYERS[name]
    cells = [eb.cell(each, name="layer") for each in (one, two)]
    boxed = eb.cell(lambda params, box: box.n(params, box.x), name="boxed")

    def run(k, params, x):
        if way == "cells":
            return cells[k](params, x)
        if way == "fields":
            return boxed(params, Box(x, (one, two)[k]))
        return (called if way == "arguments" else static)(params, (one, two)[k], x)

    def model(params, x):
        return run(0, params, x), run(1, params, x), run(0, params, x)

    same(eb.batch(model)(1.0, [3.0]), (4.0, 5.0, 4.0))


def test_keys_of_dicts_that_are_equal_to_python_are_told_apart():
    weighted = eb.cell(lambda parts: sum(k * v for k, v in parts.items()), name="w")

    def model(params, x):
        return weighted({1: x}), weighted({True: x}), weighted({1.0: x})

    three = np.int32(3)
    same(eb.batch(model)(None, [three]), model(None, three))


@partial(jax.tree_util.register_dataclass, data_fields=["w"], meta_fields=["size"])
@dataclasses.dataclass
class Convolution:
    w: Any
    size: tuple[int, ...]


def test_settings_of_parameters_that_are_tuples_are_what_they_are():
    """They used to be taken for parts of the parameters, which equal nothing."""
    kept = []

    def model(params, x):
        layer = params["layer"]
        kept.append(params["rest"])
        assert layer.size == (3, 3) and layer.size in [(1, 1), (3, 3)]
        assert {(3, 3): True}[layer.size] and params["rest"] == []
        return scale(layer.w, x)

    params = {"layer": Convolution(jnp.float32(2), (3, 3)), "rest": []}
    batched = eb.batch(model)
    same([batched(params, [3.0])], [6.0])
    kept[0].append(1)  # a separate list
    assert params["rest"] == []
    gradient = jax.grad(lambda params: batched(params, [3.0])[0])(params)
    assert gradient["layer"] == Convolution(jnp.float32(3), (3, 3))


EQUAL = [(1, True), (True, 1), (0.0, -0.0), (2, 2.0), (True, np.True_)]


@eb.cell
def by_setting(box, x):
    return box.x * x + 100 if isinstance(box.n, bool) else box.x * x / box.n


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_static_fields_of_parameters_that_are_equal_to_python(one, other):
    """The plan and the compiled program used to be those of the first value."""
    batched = eb.batch(by_setting)
    w = jnp.float32(2)
    for setting in (one, other, one):
        box = Box(w, setting)
        same([batched(box, [3.0])], [by_setting(box, 3.0)])
        gradient = jax.grad(lambda box: batched(box, [3.0]).sum())(box)
        alone = jax.grad(lambda box: by_setting(box, 3.0))(box)
        assert setting == 0 or gradient.x == alone.x
    plan = batched.plan([3.0], params=Box(w, one))
    with pytest.raises(eb.PlanError, match="Box differs in what is no array"):
        batched.apply(Box(w, other), plan)
    recorded = [batched.bind(Box(w, one)).record(3.0)]
    same([batched(Box(w, one), recorded)], [by_setting(Box(w, one), 3.0)])
    with pytest.raises(eb.PlanError, match="Box differs in what is no array"):
        batched(Box(w, other), recorded)


def shown(value):
    return type(value), repr(value)


@pytest.mark.parametrize(("one", "other"), EQUAL)
@pytest.mark.parametrize("as_list", [False, True])
def test_static_fields_of_outputs_that_are_equal_to_python(one, other, as_list):
    def model(params, instance):
        found = Box(double(instance[0]), instance[1])
        return [found] if as_list else found

    def setting(result):
        return shown((result.values if as_list else result).n)

    batched = eb.batch(model)
    for each in (one, other, one):
        assert setting(batched(None, [(3.0, each), (4.0, each)])) == shown(each)
    with pytest.raises(eb.RecordingError, match="outputs of different structure"):
        batched(None, [(3.0, one), (4.0, other)])
    recordings = [batched.record((3.0, each)) for each in (one, other)]
    with pytest.raises(eb.RecordingError, match="outputs of different structure"):
        batched(None, recordings)
    assert [setting(batched(None, [each])) for each in recordings] == [
        shown(one),
        shown(other),
    ]


def test_equations_that_fill_with_numbers_equal_to_python_are_told_apart():
    def fill(number):
        def rows(table, at):
            return table.at[at].get(mode="fill", fill_value=number)

        body, _ = trace(rows, jnp.ones(3), jnp.int32(7))
        return [equation_key(each) for each in body.equations]

    assert fill(0.0) == fill(0.0) != fill(-0.0)


@partial(jax.tree_util.register_dataclass, data_fields=["value"], meta_fields=["how"])
@dataclasses.dataclass
class Described:
    value: Any
    how: Any


@pytest.mark.parametrize("how", [np.sqrt, len, same, int, np.float32(2)])
def test_results_that_say_how_they_were_made_are_pickled(how):
    batched = eb.batch(lambda params, x: Described(scale(params, x), how), params=2.0)
    recorded = batched.record(1.0)
    copies = pickle.loads(pickle.dumps((recorded, recorded)))
    assert copies[0].outputs.tree == recorded.outputs.tree
    assert pickle.loads(pickle.dumps(recorded.outputs.tree)) == recorded.outputs.tree


@pytest.mark.parametrize(
    ("one", "other"),
    [(jnp.float32, np.dtype("float32")), ("sum", np.str_("sum")), ((), ())],
)
def test_settings_that_are_no_numbers_are_compared_as_they_compare_themselves(
    one, other
):
    batched = eb.batch(lambda params, x: scale(params.x, x))
    plan = batched.plan([3.0], params=Box(jnp.float32(2), one))
    same([batched.apply(Box(jnp.float32(2), other), plan)], [6.0])


def test_whole_numbers_of_numpy_may_be_keys_of_parameters():
    batched = eb.batch(lambda params, x: scale(params[0], x))
    for one in (0, np.int64(0), 0):
        same([batched({one: jnp.float32(2), one + 1: jnp.float32(3)}, [3.0])], [6.0])
