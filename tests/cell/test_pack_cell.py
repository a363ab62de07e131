"""Compares packed hand-written cells with the cells themselves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.nn import sigmoid
from packed_cells import assert_packed, count_products, normal, spec

import edbatch as eb
from edbatch.cell import pack_cell

pytestmark = pytest.mark.default_flags

H, D = 5, 3
LARGE = 1_000_000  # an overhead that makes every merge pay


def weights(*names, shape=(D, H)):
    return {name: normal(k, *shape) for k, name in enumerate(names)}


def vectors(*names):
    return {name: normal(9 + k, H) for k, name in enumerate(names)}


def lstm(params, x, state):
    h, c = state
    i, f, o, u = (
        x @ params[f"W{g}"] + h @ params[f"U{g}"] + params[f"b{g}"] for g in "ifou"
    )
    c = sigmoid(f) * c + sigmoid(i) * jnp.tanh(u)
    return sigmoid(o) * jnp.tanh(c), c


LSTM = (
    weights(*(f"W{g}" for g in "ifou"))
    | weights(*(f"U{g}" for g in "ifou"), shape=(H, H))
    | vectors(*(f"b{g}" for g in "ifou"))
)


def test_the_eight_products_of_an_lstm_become_one():
    inputs = normal(0, D), (normal(1, H), normal(2, H))
    packed = assert_packed(lstm, LSTM, *inputs)
    assert packed.before.num_products == 8
    [product] = packed.after.products
    assert str(product) == f"{D + H} by {D + H}x{4 * H}"
    assert product.result == (4 * H,)
    assert packed.after.packed_arrays == 2  # the matrix and the bias
    assert packed.after.packed_bytes == 4 * (D + H + 1) * 4 * H
    assert count_products(packed, LSTM, *inputs) == 1
    shapes = [each.shape for each in packed.pack(LSTM)]
    assert sorted(shapes) == [(D + H, 4 * H), (4 * H,)]


def test_the_ten_products_of_a_tree_lstm_become_one():
    gates = ("i", "o", "u", "left", "right")

    def compose(params, left, right):
        (h, c), (k, d) = left, right
        i, o, u, f, g = (
            params[f"L{gate}"] @ h + params[f"R{gate}"] @ k + params[f"b{gate}"]
            for gate in gates
        )
        c = sigmoid(i) * jnp.tanh(u) + sigmoid(f) * c + sigmoid(g) * d
        return sigmoid(o) * jnp.tanh(c), c

    params = weights(
        *(f"{side}{gate}" for side in "LR" for gate in gates), shape=(H, H)
    )
    params |= vectors(*(f"b{gate}" for gate in gates))
    state = normal(1, H), normal(2, H)
    packed = assert_packed(compose, params, state, state[::-1])
    assert (packed.before.num_products, packed.after.num_products) == (10, 1)
    assert count_products(packed, params, state, state) == 1


def gru(params, x, h):
    r, z = (sigmoid(x @ params[f"W{g}"] + h @ params[f"U{g}"]) for g in "rz")
    n = jnp.tanh(x @ params["Wn"] + (r * h) @ params["Un"] + params["bn"])
    return (1 - z) * n + z * h


GRU = (
    weights("Wr", "Wz", "Wn") | weights("Ur", "Uz", "Un", shape=(H, H)) | vectors("bn")
)


@pytest.mark.parametrize(("overhead", "products"), [(0, 3), (64, 2), (LARGE, 2)])
def test_the_product_of_a_reset_state_waits_for_the_gate(overhead, products):
    packed = assert_packed(gru, GRU, normal(0, D), normal(1, H), overhead=overhead)
    assert packed.after.num_products == products


def test_a_product_may_be_written_in_any_way():
    def cell(params, x):
        one, two, three, four, five = (params[name] for name in "abcde")
        return (
            x @ one,
            two.T @ x,
            jnp.einsum("i,ij->j", x, three),
            jnp.tensordot(four, x, ((0,), (0,))),
            lax.dot_general(five, x, (((0,), (0,)), ((), ()))),
        )

    packed = assert_packed(cell, weights(*"abcde"), normal(0, D))
    assert (packed.before.num_products, packed.after.num_products) == (5, 1)


def test_weights_may_be_computed_from_parameters():
    def cell(params, x):
        both = params["a"].reshape(2, H, D).transpose(0, 2, 1)
        return x @ both[0], x @ (2 * both[1]), x @ params["b"].astype(x.dtype)

    params = {"a": normal(0, 2 * H, D), "b": normal(1, D, H, dtype=jnp.bfloat16)}
    packed = assert_packed(cell, params, normal(0, D))
    assert packed.after.num_products == 1
    assert packed.after.packed_arrays == 1


def test_what_depends_on_parameters_alone_is_computed_once():
    def cell(params, x):
        scale = jax.nn.softplus(params["a"])
        return x * jnp.sum(scale), params["a"][:D] + 0 * x

    packed = assert_packed(cell, {"a": normal(0, 7)}, normal(0, D))
    shapes = sorted(each.shape for each in packed.pack({"a": normal(0, 7)}))
    assert shapes == [(), (D,)]
    assert packed.after.num_equations < packed.before.num_equations


def test_views_of_parameters_are_not_stored():
    def cell(params, x):
        return params["table"].T @ x + params["b"][None].repeat(9, 0).reshape(-1)[:6]

    params = {"table": normal(0, D, 6), "b": normal(1, 2)}
    packed = assert_packed(cell, params, normal(0, D))
    assert [each.shape for each in packed.pack(params)] == [(D, 6), (6,)]
    assert packed.pack(params)[0] is params["table"]


def test_each_array_is_handed_on_once_and_unused_ones_never():
    def cell(params, x):
        return x * params["a"], x + params["a"], params["a"]

    params = {"a": normal(0, D), "unused": normal(1, 4)}
    packed = assert_packed(cell, params, normal(0, D))
    assert len(packed.pack(params)) == 1


def test_constants_are_packed_like_parameters():
    one, two = normal(0, D, H), np.asarray(normal(1, D, H))

    def cell(params, x):
        return x @ one + params["b"], x @ two

    packed = assert_packed(cell, vectors("b"), normal(0, D))
    assert packed.after.num_products == 1
    packed = assert_packed(lambda _, x: x @ one, {}, normal(0, D))
    assert packed.pack({}) == ()  # the constant is no argument of the program


def test_differences_and_biases_of_all_kinds():
    def cell(params, x, y):
        a, b, c, d = (params[name] for name in "abcd")
        return (
            x @ a - y @ b - params["p"],
            -(x @ c) - (y @ d - (params["q"] + params["p"])) + 1,
            jnp.zeros(H) + x @ b,
        )

    params = weights(*"abcd") | vectors("p", "q")
    packed = assert_packed(cell, params, normal(0, D), normal(1, D), overhead=LARGE)
    assert packed.after.num_products == 2


def test_a_sum_that_others_read_is_not_taken_apart():
    def cell(params, x, y):
        first = x @ params["a"]
        return first, first + y @ params["b"]

    params = weights("a") | weights("b", shape=(H, H))
    packed = assert_packed(cell, params, normal(0, D), normal(1, H), overhead=LARGE)
    assert packed.after.num_products == 2


def test_a_product_may_be_added_twice():
    def cell(params, x, y):
        first = x @ params["a"]
        return y @ params["b"] - first - first, first + x @ params["c"]

    params = weights(*"abc")
    packed = assert_packed(cell, params, normal(0, D), normal(1, D), overhead=LARGE)
    assert packed.after.num_products == 2


def test_two_products_of_one_input_may_be_added():
    def cell(params, x, y):
        a, b, c, d = (params[name] for name in "abcd")
        return x @ a + x @ b, x @ c + y @ d + x @ a

    params = weights(*"abcd")
    packed = assert_packed(cell, params, normal(0, D), normal(1, D), overhead=LARGE)
    assert packed.after.num_products < 4


def test_matrices_as_inputs():
    def cell(params, A, B):
        a, b, c, d = (params[name] for name in "abcd")
        return (
            A @ a + B @ b + params["p"][None],
            A @ c + B @ d + params["q"][None],
            a.T @ A.T,
            jnp.tensordot(b, B, ((0,), (1,))) + params["p"][:, None],
            c.T @ B.T + params["q"][:, None],
        )

    params = weights(*"abcd") | vectors("p", "q")
    inputs = normal(0, 4, D), normal(1, 4, D)
    packed = assert_packed(cell, params, *inputs, overhead=LARGE)
    assert (packed.before.num_products, packed.after.num_products) == (7, 4)
    packed = assert_packed(cell, params, *inputs, overhead=0)
    assert packed.after.num_products == 4


@pytest.mark.parametrize("overhead", [64, LARGE])
def test_weights_before_a_matrix(overhead):
    def cell(params, A, B):
        a, b, c, d = (params[name].T for name in "abcd")
        return a @ A + b @ B, c @ A + d @ B + params["p"][:, None], a @ B

    params = weights(*"abcd") | vectors("p")
    inputs = normal(0, D, 4), normal(1, D, 4)
    packed = assert_packed(cell, params, *inputs, overhead=overhead)
    assert packed.after.num_products == 2


def test_matrices_that_depend_on_inputs_are_not_brought_together():
    def cell(_, left, right):
        (a, A), (b, B) = left, right
        return a @ B, b @ A

    state = normal(0, 32), normal(1, 32, 32)
    packed = assert_packed(cell, {}, state, state, overhead=LARGE)
    assert packed.after.num_products == 2


@pytest.mark.parametrize(
    "cell",
    [
        lambda p, x: (x @ p["a"], jnp.dot(x, p["b"], precision="highest")),
        lambda p, x: (x @ p["a"], x.astype("bfloat16") @ p["b"].astype("bfloat16")),
        lambda p, x: (
            jnp.dot(x.astype("bfloat16"), p["a"].astype("bfloat16")),
            jnp.dot(
                x.astype("bfloat16"),
                p["b"].astype("bfloat16"),
                preferred_element_type="float32",
            ),
        ),
        lambda p, x: (x @ p["a"], x[::-1] @ p["b"]),
    ],
    ids=["precision", "dtype", "preferred", "input"],
)
def test_unlike_products_stay_apart(cell):
    params = weights("a", "b", shape=(80, 2))
    packed = assert_packed(cell, params, normal(0, 80), rtol=0.05, atol=0.05)
    assert packed.after.num_products == 2


def test_casts_of_one_input_are_one_input():
    def cell(params, x):
        return [
            x.astype(jnp.bfloat16) @ params[name].astype(jnp.bfloat16) for name in "ab"
        ]

    params = weights("a", "b")
    packed = assert_packed(cell, params, normal(0, D), rtol=0.05, atol=0.05)
    assert packed.after.num_products == 1
    assert [each.dtype for each in packed.pack(params)] == [jnp.bfloat16]


def test_products_of_whole_numbers_stay_as_they_are():
    def cell(params, n):
        return n @ params["a"], n @ params["b"]

    params = {name: jnp.arange(6).reshape(2, 3) for name in "ab"}
    packed = assert_packed(cell, params, jnp.arange(2))
    assert packed.after.num_products == 2


def test_gates_packed_by_hand_are_packed_further():
    def cell(params, x, h):
        a, b = jnp.split(x @ params["W"] + params["b"], 2)
        c, d = jnp.split(h @ params["U"], 2)
        return jnp.tanh(a + c), sigmoid(b + d)

    params = {"W": normal(0, D, 8), "U": normal(1, H, 8), "b": normal(2, 8)}
    packed = assert_packed(cell, params, normal(0, D), normal(1, H))
    assert (packed.before.num_products, packed.after.num_products) == (2, 1)
    # This needs no slices of the matrices, and reads the bias unchanged.
    assert packed.after.packed_bytes == 4 * (D + H) * 8


def test_a_product_that_is_also_read_whole_is_not_split():
    def cell(params, x, h):
        whole = x @ params["W"]
        a, b = jnp.split(whole, 2)
        c, d = jnp.split(h @ params["U"], 2)
        return whole, a + c, b + d

    params = {"W": normal(0, D, 8), "U": normal(1, H, 8)}
    inputs = normal(0, D), normal(1, H)
    packed = assert_packed(cell, params, *inputs, overhead=LARGE)
    assert sorted(each.right for each in packed.after.products) == [(D, 8), (H, 8)]


def test_inputs_that_stand_side_by_side_are_not_copied():
    def cell(params, state):
        h, k = jnp.split(state, 2)
        return k @ params["b"] + h @ params["a"]

    params = weights("a", "b", shape=(H, 2 * H))
    packed = assert_packed(cell, params, normal(0, 2 * H), overhead=LARGE)
    assert packed.after.num_products == packed.after.num_equations == 1


def test_products_of_other_inputs_stay_apart():
    def cell(params, x, y):
        return jnp.tanh(x @ params["a"]), sigmoid(y @ params["b"])

    params = weights("a", "b", shape=(D, D))
    packed = assert_packed(cell, params, normal(0, D), normal(1, D), overhead=LARGE)
    assert packed.after.num_products == 2


def test_derivative_rules_of_a_gates_parts_stay():
    @jax.custom_jvp
    def halved(x):
        return x

    halved.defjvp(lambda primals, tangents: (primals[0], tangents[0] / 2))

    def cell(params, x):
        a, b, c = jnp.split(x @ params["W"], 3)
        return halved(a), jax.nn.relu(b), halved(c), jax.nn.relu(b + c)

    assert_packed(cell, {"W": normal(0, 2, 9)}, normal(1, 2))


def test_a_product_whose_parts_are_read_twice():
    def cell(params, x, y):
        a, b = jnp.split(x @ params["W"], 2)
        return jnp.sum(a * y), jnp.sum(a + y), a - y, b - y, a - 2 * y

    assert_packed(cell, {"W": normal(0, 3, 8)}, normal(1, 3), normal(2, 4))


def test_control_flow_and_calls_with_rules_stay_whole():
    @jax.custom_vjp
    def twice(x, W):
        return x @ W

    twice.defvjp(lambda x, W: (x @ W, (x, W)), lambda r, g: (2 * g @ r[1].T, r[1] * 2))

    def cell(params, x):
        looped = lax.fori_loop(0, 3, lambda _, h: jnp.tanh(h @ params["a"]), x)
        chosen = lax.cond(x[0] > 0, lambda h: h @ params["b"], lambda h: h, x)
        remat = jax.checkpoint(lambda h: h @ params["c"])(x)
        return (
            looped,
            chosen,
            remat,
            twice(x, params["a"]),
            jax.nn.relu(x @ params["b"]),
        )

    params = weights(*"abc", shape=(D, D))
    packed = assert_packed(cell, params, normal(0, D))
    assert packed.after.num_products == packed.before.num_products == 5


def test_effects_stay_in_their_order(capfd):
    def cell(params, x):
        jax.debug.print("first {}", x[0], ordered=True)
        y = x @ params["a"]
        jax.debug.print("second {}", params["a"][0, 0], ordered=True)
        return y + x @ params["b"]

    params = {"a": jnp.ones((2, 2)), "b": jnp.ones((2, 2))}
    packed = pack_cell(cell, spec(params), spec(jnp.ones(2)))
    jax.jit(packed.run)(packed.pack(params), jnp.full(2, 3.0))
    jax.effects_barrier()
    assert capfd.readouterr().out.split() == ["first", "3.0", "second", "1.0"]


def test_effects_on_parameters_happen_at_each_run():
    calls = []

    def note(x):
        calls.append(float(x))
        return np.float32(1)

    def cell(params, x):
        one = io_callback(note, spec(jnp.float32(0)), params["a"], ordered=True)
        return x + one

    params = {"a": jnp.float32(3)}
    packed = pack_cell(cell, spec(params), spec(jnp.ones(2)))
    arrays = packed.pack(params)
    assert calls == []
    for _ in range(2):
        np.testing.assert_array_equal(jax.jit(packed.run)(arrays, jnp.ones(2)), 2)
    jax.effects_barrier()
    assert calls == [3, 3]


def test_an_infinite_input_spoils_no_more_than_before():
    def cell(params, x, y):
        return x @ params["a"], y @ params["b"], x @ params["c"] + y @ params["d"]

    params = weights(*"abcd", shape=(2, 2))
    inputs = jnp.array([jnp.inf, 1]), jnp.array([jnp.nan, 1])
    for first in (inputs, inputs[::-1]):
        packed = pack_cell(cell, spec(params), *spec(first), overhead=LARGE)
        found = packed.run(packed.pack(params), *first)
        for one, two in zip(found, cell(params, *first), strict=True):
            np.testing.assert_array_equal(np.isnan(one), np.isnan(two))
            np.testing.assert_array_equal(np.isinf(one), np.isinf(two))


def test_derivatives_of_derivatives():
    packed = pack_cell(gru, spec(GRU), spec(normal(0, D)), spec(normal(1, H)))

    def loss(cell):
        return lambda params, h: jnp.sum(cell(params, normal(0, D), h) ** 2)

    run = jax.checkpoint(lambda params, *rest: packed.run(packed.pack(params), *rest))
    found = jax.hessian(loss(run), argnums=1)(GRU, normal(1, H))
    expected = jax.hessian(loss(gru), argnums=1)(GRU, normal(1, H))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_outputs_of_every_kind():
    def cell(params, x, n):
        return {
            "input": x,
            "parameter": params["a"],
            "both": (x @ params["a"], [x @ params["b"]] * 2),
            "number": jnp.float32(3),
            "index": params["a"][n],
            "nothing": None,
        }

    packed = assert_packed(cell, weights("a", "b"), normal(0, D), jnp.int32(1))
    assert packed.after.num_products == 1


def test_a_cell_without_parameters_or_inputs():
    assert pack_cell(lambda _: jnp.zeros(3), {}).pack({}) == ()
    assert_packed(lambda params, x: params["a"], {"a": normal(0, 2)}, normal(0, 1))


def test_the_same_cell_is_packed_in_the_same_way():
    one, two = (
        pack_cell(lstm, spec(LSTM), spec(normal(0, D)), spec((normal(1, H),) * 2))
        for _ in range(2)
    )
    assert one.after == two.after
    for a, b in zip(one.pack(LSTM), two.pack(LSTM), strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_overhead_is_not_negative():
    with pytest.raises(
        eb.PlanError, match=r"0 elements or more but is -3; leave it out"
    ):
        pack_cell(lstm, {}, overhead=-3)


def test_factored_weights():
    def cell(params, x):
        a, b, c = (x @ params[f"A{k}"] for k in range(3))
        return a @ params["B0"] + c @ params["B2"], b

    params = {f"A{k}": normal(k, 5, 4) for k in range(3)}
    params |= {f"B{k}": normal(k, 4, 6) for k in (0, 2)}
    packed = assert_packed(cell, params, normal(7, 5))
    assert packed.after.num_products == 2
