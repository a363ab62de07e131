"""Tests that a program's key depends on everything the program is made of.

Otherwise one model would run the program of another and get its results.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive

import edbatch as eb
from edbatch.stored_programs.content import Content, UnknownContentError, digest_of
from edbatch.stored_programs.program_key import _source_files, program_key

SIZES = eb.Sizes(widths=(8,))
PARAMS = {"w": np.ones((3, 3), np.float32), "b": np.ones(3, np.float32)}
CONSTANT = np.arange(3, dtype=np.float32)


def key_of(
    function,
    params=PARAMS,
    *,
    what="f",
    static=(),
    sizes=SIZES,
    differentiates=True,
    **options,
):
    cell = eb.cell(lambda params, x: function(params, x), name="cell")
    batched = eb.batch(
        lambda params, x: cell(params, x), params=params, sizes=sizes, **options
    )
    program = batched.plan([np.ones(3, np.float32)] * 3).shape.program
    return program_key(what, program, static, differentiates=differentiates)


def base(params, x):
    return jnp.tanh(params["w"] @ x + params["b"])


@jax.custom_jvp
def halved(x):
    return x * 0.5


@halved.defjvp
def _slope_half(primals, tangents):
    return halved(*primals), 0.5 * tangents[0]


@jax.custom_jvp
def halved_with_slope_one(x):
    return x * 0.5


@halved_with_slope_one.defjvp
def _slope_one(primals, tangents):
    return halved_with_slope_one(*primals), 1.0 * tangents[0]


def scanned(scale):
    def function(params, x):
        return lax.scan(lambda c, y: (c + scale * y, c), jnp.zeros(()), x)[1]

    return function


def chosen(scale):
    return lambda params, x: lax.cond(x[0] > 0, lambda y: y * scale, jnp.sin, x)


def called(scale):
    return lambda params, x: jax.jit(lambda y: y * scale)(x) + params["b"]


def kept(scale):
    return lambda params, x: jax.checkpoint(lambda y: jnp.sin(y * scale))(x)


def named(name):
    keep = jax.checkpoint_policies.save_only_these_names(name)
    return lambda params, x: jax.checkpoint(jnp.sin, policy=keep)(x)


def constant(array):
    return lambda params, x: x + array


def rounded(precision):
    return lambda params, x: lax.dot(params["w"], x, precision=precision)


def drawn(impl):
    def function(params, x):
        return x + jax.random.normal(jax.random.key(3, impl=impl), (3,))

    return function


def test_equal_models_have_one_key():
    assert key_of(base) is not None
    assert key_of(base) == key_of(base)


# In JAX 0.12 policies are functions, so programs with one have no key and are traced.
POLICIES_ARE_VALUES = not callable(jax.checkpoint_policies.dots_saveable) or hasattr(
    jax.checkpoint_policies.dots_saveable, "only_if_no_batch_dims"
)

PAIRS = {
    "operation": (base, lambda p, x: jnp.sin(p["w"] @ x + p["b"])),
    "order of operands": (lambda p, x: x - p["b"], lambda p, x: p["b"] - x),
    "literal": (lambda p, x: x * 2.0, lambda p, x: x * 3.0),
    "sign of zero": (lambda p, x: x * 0.0, lambda p, x: x * -0.0),
    "parameter of a primitive": (
        lambda p, x: lax.cumsum(p["w"], axis=0)[0],
        lambda p, x: lax.cumsum(p["w"], axis=1)[0],
    ),
    "axis of a stack": (
        lambda p, x: jnp.stack([x, p["b"]], axis=0).sum(0),
        lambda p, x: jnp.stack([x, p["b"]], axis=1).sum(1),
    ),
    "part of an array": (
        lambda p, x: jnp.unstack(p["w"])[0] + jnp.split(x, 3)[0].sum(),
        lambda p, x: jnp.unstack(p["w"])[1] + jnp.split(x, 3)[0].sum(),
    ),
    "reverse": (
        lambda p, x: lax.cumsum(x, reverse=False),
        lambda p, x: lax.cumsum(x, reverse=True),
    ),
    "array": (constant(CONSTANT), constant(CONSTANT + 1)),
    "dtype of an array": (constant(CONSTANT), constant(CONSTANT.astype(np.float16))),
    "last bit of an array": (
        constant(CONSTANT),
        constant(np.nextafter(CONSTANT, np.float32(9))),
    ),
    "which parameter": (lambda p, x: x + p["b"], lambda p, x: x + p["w"][0]),
    "precision": (rounded(lax.Precision.DEFAULT), rounded(lax.Precision.HIGHEST)),
    "body of a scan": (scanned(1.0), scanned(2.0)),
    "carry of a scan": (
        lambda p, x: lax.scan(lambda c, a: ((c[0] + a, c[1]), c[1]), (x, x), p["w"])[1],
        lambda p, x: lax.scan(lambda c, a: ((c[0] + a, c[0]), c[1]), (x, x), p["w"])[1],
    ),
    "branch": (chosen(1.0), chosen(2.0)),
    "inner call": (called(1.0), called(2.0)),
    "inside of checkpoint": (kept(1.0), kept(2.0)),
    "policy of checkpoint": (named("a"), named("b")),
    "rule of tangents": (
        lambda p, x: halved(x),
        lambda p, x: halved_with_slope_one(x),
    ),
    "no rule": (lambda p, x: halved(x), lambda p, x: x * 0.5),
    "rule in a scan": (
        lambda p, x: lax.map(halved, x),
        lambda p, x: lax.map(halved_with_slope_one, x),
    ),
    "generator": (drawn("threefry2x32"), drawn("rbg")),
    "result": (lambda p, x: (x, p["b"] + x), lambda p, x: (p["b"] + x, x)),
}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_cells_that_differ_have_two(pair):
    one, other = map(key_of, pair)
    if pair is PAIRS["policy of checkpoint"] and not POLICIES_ARE_VALUES:
        assert one is None and other is None
        return
    assert None not in (one, other)
    assert one != other


def test_what_stands_beside_the_cells():
    wide = {**PARAMS, "w": np.ones((3, 3), np.float16)}
    renamed = {"w": PARAMS["w"], "b": PARAMS["b"], "more": np.ones(2, np.float32)}
    keys = [
        key_of(base),
        key_of(base, what="g"),
        key_of(base, static=((4, 3),)),
        key_of(base, wide),
        key_of(base, renamed),
        key_of(base, sizes=eb.Sizes(widths=(16,))),
        key_of(base, compiler=eb.Compiler(packing="never")),
        key_of(base, compiler=eb.Compiler(remat="always")),
    ]
    assert None not in keys
    assert len({*keys}) == len(keys)


def test_the_number_of_iterations():
    """On GPUs the number of chunks is a size of the bucket, apart from its loops."""
    batched = eb.batch(eb.cell(base), params=PARAMS, sizes=SIZES)
    program = batched.plan([np.ones(3, np.float32)] * 3).shape.program
    keys = [
        program_key("f", replace(program, chunks=each), (), differentiates=True)
        for each in (0, 5, 6, 5)
    ]
    assert len({*keys}) == 3 and keys[1] == keys[3]


def test_which_list_a_mask_belongs_to():
    """The equations differ only in the mask that is read."""

    def own(params, one, other, one_mask, other_mask):
        return one.sum(0, where=one_mask[:, None]) + other.sum(0)

    def swapped(params, one, other, one_mask, other_mask):
        return one.sum(0, where=other_mask[:, None]) + other.sum(0)

    def key(function, padded):
        cell = eb.cell(function, name="cell", padded=padded, lengths=(4,))
        batched = eb.batch(
            lambda params, x: cell(params, [x], [x, x]), params=PARAMS, sizes=SIZES
        )
        program = batched.plan([np.ones(3, np.float32)] * 3).shape.program
        return program_key("f", program, (), differentiates=True)

    keys = [key(own, ("one", "other")), key(swapped, ("other", "one"))]
    assert None not in keys and keys[0] != keys[1]


@pytest.mark.parametrize(
    "setting",
    [
        partial(jax.default_matmul_precision, "highest"),
        partial(jax.numpy_rank_promotion, "warn"),
        partial(jax.default_prng_impl, "rbg"),
        partial(jax.threefry_partitionable, False),
    ],
    ids=["precision", "rank promotion", "generator", "threefry"],
)
def test_settings_of_jax(setting):
    before = key_of(base)
    with setting():
        found = key_of(base)
    assert found is not None
    assert found != before
    assert key_of(base) == before


def test_tier_and_target():
    batched = eb.batch(eb.cell(base), params=PARAMS, sizes=SIZES)
    plan = batched.plan([np.ones(3, np.float32)] * 3)
    keys = [
        program_key("f", each.shape.program, (), differentiates=True)
        for each in (plan, plan.in_tier("coarse"), plan.on(eb.target.GPU))
    ]
    assert len({*keys}) == 3


@jax.custom_vjp
def with_rule(x):
    return x


with_rule.defvjp(lambda x: (x, None), lambda _, bar: (2 * bar,))

OWN = Primitive("own")
OWN.def_abstract_eval(lambda aval: aval)
OWN.def_impl(lambda x: x)


@jax.custom_jvp
def takes_symbolic_zeros(x):
    return x


takes_symbolic_zeros.defjvp(
    lambda primals, tangents: (primals[0], tangents[0]), symbolic_zeros=True
)


def printed(params, x):
    jax.debug.print("{}", x)
    return x


def called_back(params, x):
    return jax.pure_callback(lambda y: y, x, x)


def policy(params, x):
    return jax.checkpoint(jnp.sin, policy=lambda *_, **__: True)(x)


@pytest.mark.parametrize(
    "function",
    [
        lambda p, x: with_rule(x),
        lambda p, x: OWN.bind(x),
        lambda p, x: takes_symbolic_zeros(x),
        printed,
        called_back,
        policy,
    ],
    ids=["custom_vjp", "primitive", "zeros", "print", "callback", "policy"],
)
def test_what_cannot_be_hashed_has_none(function):
    assert key_of(function) is None


def test_rules_of_derivatives_count_where_one_differentiates():
    def key(function, *, differentiates):
        return key_of(lambda p, x: function(x), differentiates=differentiates)

    functions = halved, halved_with_slope_one, takes_symbolic_zeros
    assert len({key(each, differentiates=False) for each in functions[:2]}) == 1
    found = {key(each, differentiates=yes) for each in functions for yes in (0, 1)}
    assert len(found) == 5  # two without derivatives, two with, and None
    assert None not in {key(each, differentiates=False) for each in functions}


def test_kinds_of_values_are_told_apart():
    values = [
        *(0, False, 0.0, -0.0, None, "", b"", (), [], {}, frozenset()),
        *("0", b"0", (0,), [0], ((0,),), (0, 0), {0: 0}, {"0": 0}, frozenset({0})),
        *(np.float32(0), np.zeros(1, np.float32), np.zeros((1, 1), np.float32)),
        *(np.zeros(1, np.int32), np.dtype("float32"), np.dtype("int32")),
        *(np.dtype(">f4"), jnp.float32, lax.Precision.HIGH, lax.Precision.HIGHEST),
        *(("ab", "c"), ("a", "bc"), jax.ShapeDtypeStruct((2,), np.float32)),
        *(jax.ShapeDtypeStruct((3,), np.float32), jnp.zeros(1), float("nan")),
    ]
    assert len({digest_of(each) for each in values}) == len(values)


@pytest.mark.parametrize(
    "value", [object(), lambda: 0, np.array([None]), print, Content(), [lambda: 0]]
)
def test_other_values_are_refused(value):
    with pytest.raises(UnknownContentError):
        digest_of(value)


def test_sources_in_folders_of_folders_count():
    package = Path(eb.__file__).parent
    cell = {*(package / "cell").rglob("*.py")}
    assert package / "cell" / "jaxpr" / "function_body.py" in cell
    assert cell <= {*_source_files()}
