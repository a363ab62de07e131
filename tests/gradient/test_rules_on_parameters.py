"""Tests `jax.custom_vjp` rules on values that cells compute from parameters.

Values that depend only on parameters are computed once for all nodes. The gradient
stays the same if the rule is linear in the cotangent; any other rule must run for each
node.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import edbatch as eb
from edbatch.cell.cell_graph import trace_cell
from edbatch.cell.jaxpr import equations_of, name_of
from edbatch.cell.primitives import OF_EACH_ROW
from edbatch.cell.rules_of_parameters import with_rules_of_rows

PARAMS = {"b": jnp.float32([1, 0.5, -1]), "W": jnp.eye(3) * 0.7 + 0.1}
SPEC = jax.ShapeDtypeStruct((3,), "float32")
KEY = jax.random.key(0)
SQUARE = jax.ShapeDtypeStruct((3, 3), "float32")


def rule(backward, forward=lambda x: x):
    """A function with the gradient rule `backward(argument, cotangent)`."""
    function = jax.custom_vjp(forward)
    function.defvjp(lambda x: (forward(x), x), lambda x, g: (backward(x, g),))
    return function


NOT_LINEAR = {
    "clipped": lambda x, g: jnp.clip(g, -0.1, 0.1),
    "sign": lambda x, g: jnp.sign(g),
    "moved": lambda x, g: g + 0.1 * x,
    "constant": lambda x, g: jnp.ones_like(x),
    "squared": lambda x, g: g * g,
    "of one norm": lambda x, g: g / (1e-3 + jnp.linalg.norm(g)),
    "chosen by itself": lambda x, g: jnp.where(g > 0, g, 0),
    "divided": lambda x, g: x / (2 + g),
    "looked up": lambda x, g: jnp.take(g, jnp.argmax(g), mode="clip") + 0 * x,
    "rounded to whole numbers": lambda x, g: jnp.int32(8 * g).astype(g.dtype),
    "rounded to few bits": lambda x, g: lax.reduce_precision(g, 8, 1),
    "cast to a byte": lambda x, g: g.astype(jnp.float8_e5m2).astype(g.dtype),
    "filled": lambda x, g: jnp.take(
        g, jnp.arange(len(g)) + 1, mode="fill", axis=0, fill_value=1.0
    ),
    "set to a number": lambda x, g: g.at[0].set(3.0),
    "moved by a constant": lambda x, g: g + np.float32([0, 0, 1]),
    "scanned": lambda x, g: lax.scan(lambda h, y: (h * y, h), 1.0, g)[1],
    "of a loop": lambda x, g: lax.fori_loop(0, 2, lambda _, h: h + 0.5, g),
    "of a branch": lambda x, g: lax.cond(g[0] > 0, lambda g: g, lambda g: -g, g),
    "of one of two branches": lambda x, g: lax.cond(
        x[0] < 0, lambda g: g, lambda g: jnp.tanh(g), g
    ),
    "computed again": lambda x, g: jax.checkpoint(jnp.tanh)(g),
    "rectified": lambda x, g: jax.nn.relu(g),
}
LINEAR = {
    "straight through": lambda x, g: g,
    "masked": lambda x, g: jnp.where(jnp.abs(x) < 1, g, 0),
    "reversed": lambda x, g: -0.3 * g,
    "scaled": lambda x, g: g * jnp.exp(x) / 2 + x * g.sum(),
    "projected": lambda x, g: g - x * jnp.vdot(x, g),
    "cut": lambda x, g: jnp.concatenate([g.ravel()[:2], jnp.zeros(x.size - 2)]).reshape(
        g.shape
    ),
    "none": lambda x, g: jnp.zeros_like(g),
    "a row left out": lambda x, g: g.at[0].set(0.0),
    "a row halved": lambda x, g: g.at[0].multiply(0.5),
    "where there are zeros": lambda x, g: jnp.where(x > 0, g, ZEROS),
    "zeros": lambda x, g: np.zeros(x.shape, np.float32),
    "zero times": lambda x, g: jnp.where(x > 0, g, 0 * x),
    "stopped": lambda x, g: lax.stop_gradient(g) ** 1,
    "tiled": lambda x, g: (
        jnp.tile(jnp.stack([g, x * g])[1], 2)[: len(g)] if g.ndim == 1 else g
    ),
    "surrogate": lambda x, g: jax.vjp(lambda x: jnp.sort(jnp.tanh(x)), x)[1](g)[0],
    "scanned": lambda x, g: lax.scan(lambda h, y: (h * 0.5 + y, h), 0 * g[0], g)[1],
    "of a loop": lambda x, g: lax.fori_loop(0, 2, lambda _, h: h * x, g),
    "of a branch": lambda x, g: lax.cond(
        x.sum() > 0, lambda g: 2 * g, lambda g: g.at[0].set(0), g
    ),
    "computed again": lambda x, g: jax.checkpoint(lambda g: g * jnp.cos(x))(g),
    "scattered": lambda x, g: jnp.zeros_like(g).at[1].add(2 * g[0]).at[0].set(g[2]),
    "jitted": jax.jit(lambda x, g: 2 * g[::-1]),
}


@eb.cell
def times(h, x):
    return h * x


def parted(function, *specs):
    """Number of values that a cell computes per row because of its rules."""
    graph, _ = trace_cell(function, *specs)
    nodes = equations_of(with_rules_of_rows(graph).nodes)
    return sum(name_of(each) == OF_EACH_ROW for each in nodes)


def assert_close(found, expected):
    """Allows rounding of tanh's derivative near 1, times a cotangent of up to 7."""
    np.testing.assert_allclose(found, expected, rtol=5e-4, atol=2e-5)


def check(model, params, instances, **options):
    """Compares gradients with the sum over unbatched instances, then verifies."""
    batched = eb.batch(model, **options)
    weights = jnp.float32([0.5, -3, 0.01, 7, 1e-3])[: len(instances)]

    def loss(of, p):
        return sum((jnp.sum(jnp.stack(jax.tree.leaves(one))) * w) for one, w in of(p))

    found = jax.grad(
        lambda p: loss(lambda p: zip(batched(p, instances), weights, strict=True), p)
    )(params)
    expected = jax.grad(
        lambda p: loss(
            lambda p: zip([model(p, x) for x in instances], weights, strict=True), p
        )
    )(params)
    jax.tree.map(assert_close, found, expected)
    eb.verify(batched, params, instances)


ZEROS = np.zeros(3, np.float32)
INSTANCES = list(np.float32([[1, 2, 3], [-1, 0.3, 0], [0.1, 0.2, -0.3]]))


@pytest.mark.parametrize("rules", [NOT_LINEAR, LINEAR])
def test_which_rules_run_for_each_node(rules):
    found = {}
    for name, backward in rules.items():
        apply = rule(backward)
        found[name] = parted(lambda p, x, f=apply: f(p["b"]) * x, PARAMS, (SPEC,))
    assert found == dict.fromkeys(rules, int(rules is NOT_LINEAR))


@pytest.mark.parametrize("rules", [NOT_LINEAR, LINEAR])
def test_gradients_of_all_rules(rules):
    applied = {name: rule(backward) for name, backward in rules.items()}
    params = {name: PARAMS["b"] * (1 + 0.1 * k) for k, name in enumerate(applied)}

    @eb.cell
    def combine(params, h, x):
        for name, apply in applied.items():
            h = h + jnp.tanh(apply(params[name]) * x + 0.1 * h)
        return h

    def model(params, x):
        return combine(params, combine(params, jnp.zeros(3), x), x)

    check(model, params, INSTANCES)


def test_a_cast_to_half_precision_counts_as_rounding():
    apply = rule(lambda x, g: g.astype(jnp.bfloat16).astype(g.dtype))
    assert parted(lambda p, x: apply(p["b"]) * x, PARAMS, (SPEC,)) == 0


clipped = rule(NOT_LINEAR["clipped"])


@pytest.mark.parametrize("packing", ["never", "auto"])
def test_a_matrix_in_a_product(packing):
    @eb.cell
    def combine(params, h, x):
        return jnp.tanh(clipped(params["W"]) @ h + params["W"] @ x)

    def model(params, x):
        return combine(params, combine(params, jnp.zeros(3), x), x)

    check(model, PARAMS, INSTANCES, compiler=eb.Compiler(packing=packing))


def scanned(params, x):
    """Applies the rule in each step of a loop inside the cell."""
    return lax.scan(lambda h, y: (jnp.tanh(h + clipped(params["b"]) * y), None), x, x)[
        0
    ]


def chosen(params, x):
    """Applies the rule in one of two branches."""
    return lax.cond(x[0] > 0, lambda b: clipped(b) * x, lambda b: b * x, params["b"])


def computed_again(params, x):
    """Applies the rule in a function that the backward pass recomputes."""
    return jax.checkpoint(lambda b: jnp.tanh(clipped(b) * x))(params["b"])


def nested(params, x):
    """Applies the rule in a jitted function, to a function of a parameter."""
    return jax.jit(lambda b: clipped(jnp.tanh(b) @ params["W"]))(params["b"]) * x


def in_a_loop_of_parameters(params, x):
    """Applies the rule in a loop that reads only parameters."""
    step = lambda h, b: (jnp.tanh(h) * clipped(b), None)  # noqa: E731
    return lax.scan(step, params["b"], params["W"])[0] * x


def two_arguments(params, x):
    """A rule on a parameter and an argument, and a rule on two parameters."""
    both = jax.custom_vjp(lambda a, b: a * b)
    both.defvjp(
        lambda a, b: (a * b, (a, b)),
        lambda kept, g: (jnp.clip(g * kept[1], -0.1, 0.1), jnp.sign(g * kept[0])),
    )
    return both(params["b"], x) + both(params["b"], params["W"][0]) * x


@pytest.mark.parametrize(
    "function",
    [scanned, chosen, computed_again, nested, in_a_loop_of_parameters, two_arguments],
)
def test_where_it_is_applied(function):
    check(eb.cell(function), PARAMS, INSTANCES)


def test_two_nodes_that_read_one_external_input():
    @eb.cell
    def combine(params, h, x):
        return jnp.tanh(h + params["W"] @ (clipped(params["b"]) * x))

    def model(params, x):
        return combine(params, combine(params, jnp.zeros(3), x), x)

    check(model, PARAMS, [*INSTANCES, INSTANCES[0]])


def test_types_that_share_a_loop():
    params = {"layers": [{"b": PARAMS["b"] * k} for k in range(1, 7)]}

    @eb.cell
    def layer(own, h):
        return jnp.tanh(clipped(own["b"]) * h + own["b"])

    def model(params, x):
        h = x
        for own in params["layers"]:
            h = layer(own, h)
        return h

    check(model, params, INSTANCES)


def test_parameters_that_an_argument_chooses():
    params = {"E": jnp.stack([PARAMS["b"] * k for k in range(1, 5)])}

    @eb.cell
    def expert(params, k, x):
        return jnp.tanh(clipped(params["E"][k]) * x + clipped(params["E"])[k])

    def model(params, instance):
        k, x = instance
        return expert(params, k, expert(params, 0, x))

    check(model, params, list(zip([1, 3, 3], INSTANCES, strict=True)))


def test_cells_that_draw_random_numbers():
    @eb.cell
    def noisy(params, rng=None):
        return clipped(params["b"]) * jax.random.normal(rng, (3,))

    batched = eb.batch(lambda params, x: times(noisy(params), x))
    found = jax.grad(lambda p: batched(p, INSTANCES, rng=KEY)[0].sum())(PARAMS)
    assert float(jnp.abs(found["b"]).max()) > 0
    eb.verify(batched, PARAMS, INSTANCES, rng=KEY)


def recomputed_beside(params, x):
    """The rule is on the argument only; the same function also reads a matrix."""
    return jax.checkpoint(lambda W, h: jnp.tanh(W @ clipped(h)))(params["W"], x)


def scanned_beside(params, x):
    """The same in a loop, whose carry depends on both."""
    step = lambda h, y: (jnp.tanh(params["W"] @ clipped(h) + y), None)  # noqa: E731
    return lax.scan(step, x, jnp.stack([x, x]))[0]


@pytest.mark.parametrize("function", [recomputed_beside, scanned_beside])
def test_what_a_rule_does_not_read_is_not_copied(function):
    assert parted(function, PARAMS, (SPEC,)) == 0
    check(eb.cell(function), PARAMS, INSTANCES)


def test_without_a_gradient_the_rule_runs_once():
    traced = []

    @eb.cell
    def combine(params, h, x):
        return jnp.tanh(
            rule(lambda x, g: traced.append(1) or jnp.sign(g))(params["b"]) * h + x
        )

    batched = eb.batch(lambda params, x: combine(params, x, x), params=PARAMS)
    plan = batched.plan(INSTANCES)
    batched.apply(PARAMS, plan)
    assert traced == []
    types = plan.shape.program.types
    used = {loop.type_id for loop in plan.shape.program.loops}
    for differentiated in (False, True):
        program = plan.shape.program.with_options(differentiated=differentiated)
        shapes = [
            each.shape
            for type_id in used
            for each in jax.eval_shape(program.cell(type_id).pack, types.params_spec)
        ]
        assert shapes == [(3,)]
    assert traced != []


def test_a_rule_is_read_when_the_gradient_is_taken():
    limit = [None]

    def backward(x, g):
        return g if limit[0] is None else jnp.clip(g, -limit[0], limit[0])

    apply = rule(backward)

    @eb.cell
    def combine(params, x):
        return jnp.tanh(apply(params["b"]) * x)

    batched = eb.batch(combine)
    batched(PARAMS, INSTANCES)
    limit[0] = 0.1
    found = jax.grad(lambda p: batched(p, INSTANCES).sum())(PARAMS)["b"]
    expected = sum(
        jax.grad(lambda p, x=x: combine(p, x).sum())(PARAMS)["b"] for x in INSTANCES
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "use",
    [
        lambda b: b * lax.stop_gradient(clipped(b)),
        lambda b: (clipped(b), 2 * b)[1],
        rule(LINEAR["a row left out"]),
    ],
)
def test_a_cell_of_parameters_alone_whose_rules_do_not_matter(use):
    @eb.cell
    def start(params):
        return use(params["b"])

    check(lambda params, x: times(start(params), x), PARAMS, INSTANCES)


def test_a_cell_of_parameters_alone_is_refused():
    @eb.cell
    def start(params):
        return clipped(params["b"])

    def model(params, x):
        return times(start(params), x)

    batched = eb.batch(model)
    found = batched(PARAMS, INSTANCES)
    np.testing.assert_allclose(found[0], model(PARAMS, INSTANCES[0]), rtol=1e-6)
    with pytest.raises(eb.CellError, match="'start' takes only parameters"):
        jax.grad(lambda p: sum(map(jnp.sum, batched(p, INSTANCES))))(PARAMS)


def of_tangents(apply):
    """A `jax.custom_jvp` function whose rule applies another function with a rule."""
    function = jax.custom_jvp(jnp.tanh)
    function.defjvp(lambda x, t: jax.jvp(lambda b: apply(jnp.tanh(b)), x, t))
    return function


@pytest.mark.parametrize("name", ["clipped", "moved", "sign"])
def test_a_rule_of_tangents_that_applies_one(name):
    apply = of_tangents(rule(NOT_LINEAR[name]))

    def combine(params, x):
        return apply(params["b"]) * x

    assert parted(combine, PARAMS, (SPEC,)) == 1
    check_or_refuse(combine)


def check_or_refuse(function):
    """Like `check`, but JAX 0.10 cannot differentiate such a rule under `jax.vmap`."""
    try:
        check(eb.cell(function), PARAMS, INSTANCES)
    except eb.CellError as error:
        assert "can't apply forward-mode autodiff" in str(error)
        with pytest.raises(TypeError, match="forward-mode"):
            jax.grad(lambda b: jax.vmap(lambda b: function({"b": b}, b))(b).sum())(
                jnp.stack(INSTANCES)
            )


def test_a_rule_of_tangents_inside_a_loop():
    apply = of_tangents(clipped)

    def combine(params, x):
        step = lambda h, y: (jnp.tanh(h + apply(params["b"]) * y), None)  # noqa: E731
        return lax.scan(step, x, x)[0]

    check_or_refuse(combine)


@pytest.mark.parametrize(
    "apply",
    [
        of_tangents(rule(LINEAR["masked"])),
        of_tangents(jnp.sin),
        jax.nn.relu,
        jax.nn.silu,
        jax.nn.logsumexp,
    ],
)
def test_rules_of_tangents_that_are_linear(apply):
    def combine(params, x):
        return apply(params["b"]) * x

    assert parted(combine, PARAMS, (SPEC,)) == 0


def test_a_rule_that_cannot_be_traced_counts_as_not_linear():
    apply = rule(lambda x, g: g if g.sum() > 0 else -g)

    def combine(params, x):
        return apply(params["b"]) * x

    assert parted(combine, PARAMS, (SPEC,)) == 1
