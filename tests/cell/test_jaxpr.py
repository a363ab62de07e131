"""Only one package uses JAX's internals, and only one of its files imports them.

A release of JAX that changes an internal fails here. The first tests read the sources
with `ast`, as `test_import_direction` does. The others check each internal that
`edbatch/cell/jaxpr/` relies on, then the internals of the persistent cache and of the
settings that `edbatch/compilation/` and `edbatch/stored_programs/` rely on.
"""

import ast
import gc
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cache_options import own_cache_options
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import Primitive
from jax.lax import GatherDimensionNumbers
from test_import_direction import imports

import edbatch.gradient.reverse_mode  # noqa: F401 (its primitives are counted)
from edbatch.cell import primitives
from edbatch.cell.cell_graph import Inliner
from edbatch.cell.jaxpr import (
    as_function,
    body_of,
    called_body,
    equation_key,
    exponent_of,
    fills_with_a_number,
    inner_bodies,
    mantissa_bits,
    name_of,
    new_variable,
    read_cuts,
    read_dot,
    read_lookup,
    read_scan,
    read_while,
    reverse_only_identity,
    rewire,
    shape_of,
    takes_symbolic_zeros,
    trace,
)
from edbatch.compilation import use_compilation_cache
from edbatch.compilation.cache import _JAX_WARNINGS, _READING
from edbatch.compilation.cache_key import (
    KERNEL_CACHES_OPTION,
    cache_key_at,
    entry_of,
)
from edbatch.compilation.stages import _CACHE_HIT, _CACHE_MISS
from edbatch.stored_programs.program_key import _OTHER_SETTINGS

PROJECT_ROOT = Path(__file__).resolve().parents[2]
OWNER = "edbatch/cell/jaxpr"  # may use them
IMPORTER = f"{OWNER}/internals.py"  # may import them
FOLDERS = ("edbatch", "envs", "policies", "memory_planner", "experiments")

UNSTABLE_MODULES = ("jax.extend", "jax.interpreters", "jax._src")
# Attributes of equations and jaxprs, which may change in any release.
UNSTABLE_ATTRIBUTES = {
    *("primitive", "ctx", "xla_metadata", "compute_type", "eqns", "constvars"),
    *("subfuns", "debug_info", "get_bind_params"),
}


def unstable_uses(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields the line and the name of each use of a JAX internal."""
    for node in ast.walk(tree):
        names: list[str] = []
        match node:
            case ast.Import():
                names = [alias.name for alias in node.names]
            case ast.ImportFrom():
                base = node.module or ""
                names = [f"{base}.{alias.name}" for alias in node.names]
            case ast.Attribute(attr=name) if name in UNSTABLE_ATTRIBUTES:
                yield node.lineno, f".{name}"
            case ast.Attribute():
                names = [ast.unparse(node)]
            case ast.Subscript(value=ast.Attribute(attr="params"), slice=key):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield node.lineno, f".params[{key.value!r}]"
            case ast.Constant(value="UnspecifiedValue"):
                yield node.lineno, "UnspecifiedValue"
        for name in names:
            if name.startswith(UNSTABLE_MODULES):
                yield node.lineno, name


def uses_of(file: Path) -> Iterator[tuple[int, str]]:
    return unstable_uses(ast.parse(file.read_text()))


def violations(root: Path) -> list[str]:
    found = []
    for folder in FOLDERS:
        for file in sorted((root / folder).rglob("*.py")):
            place = file.relative_to(root).as_posix()
            inside = place.startswith(f"{OWNER}/")
            for line, name in [] if place == IMPORTER else uses_of(file):
                if not inside:
                    found.append(
                        f"{place}:{line}: {name} is an internal of JAX; {OWNER} alone"
                        " may use it, so give that a function"
                    )
                elif name.startswith(UNSTABLE_MODULES):
                    found.append(f"{place}:{line}: {IMPORTER} alone imports {name}")
    return found


def test_one_package_knows_the_internals_of_jax():
    found = violations(PROJECT_ROOT)
    assert not found, "\n".join(found)


def test_that_package_uses_them():
    files = (PROJECT_ROOT / OWNER).glob("*.py")
    used = {name for file in files for _, name in uses_of(file)}
    assert {".primitive", ".ctx", "UnspecifiedValue"} <= used
    imported = {name for _, name in uses_of(PROJECT_ROOT / IMPORTER)}
    assert {"jax.extend.core.Var", "jax.interpreters.ad"} <= imported


def test_nobody_else_imports_from_its_modules():
    package = OWNER.replace("/", ".")
    found = [
        f"{file.relative_to(PROJECT_ROOT)}:{line}: import {name} from {package}"
        for folder in ("tests", *FOLDERS)
        for file in sorted((PROJECT_ROOT / folder).rglob("*.py"))
        if file.parent != PROJECT_ROOT / OWNER
        for line, name in imports(ast.parse(file.read_text()))
        if name.startswith(f"{package}.")
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("file", "found"),
    [
        ("equation.py", ["edbatch/cell/jaxpr/equation.py:1: "]),
        ("internals.py", []),
    ],
)
def test_one_file_imports_the_internals_of_jax(tmp_path, file, found):
    (tmp_path / OWNER).mkdir(parents=True)
    source = "from jax.extend.core import Var\nkind = Var.primitive"
    (tmp_path / OWNER / file).write_text(source)
    assert [
        each.partition("edbatch/cell/jaxpr/internals")[0]
        for each in violations(tmp_path)
    ] == found


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("from jax.extend.core import Var", "jax.extend.core.Var"),
        ("def f():\n    import jax._src.core", "jax._src.core"),
        (
            "from jax import interpreters\nfrom jax.extend import core",
            "jax.extend.core",
        ),
        ("from jax import extend", "jax.extend"),
        ("import jax\njax.interpreters.ad.Zero", "jax.interpreters"),
        ("def f(eqn):\n    return eqn.primitive.name", ".primitive"),
        ("def f(eqn):\n    return eqn.ctx", ".ctx"),
        ("def f(eqn):\n    return eqn.params['axis']", ".params['axis']"),
        ("x = type(y).__name__ == 'UnspecifiedValue'", "UnspecifiedValue"),
    ],
)
def test_an_internal_elsewhere_is_named(tmp_path, source, name):
    (tmp_path / "edbatch").mkdir()
    (tmp_path / "edbatch" / "other.py").write_text(source)
    found = violations(tmp_path)
    assert found, "nothing was found"
    assert any(name in each and "edbatch/other.py:" in each for each in found)


@pytest.mark.parametrize(
    "source",
    [
        "import jax",
        "from jax import Array, lax",
        "f(params['W'])",
        "model.params[name]",
    ],
)
def test_what_is_public_may_be_used(tmp_path, source):
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "a.py").write_text(source)
    assert violations(tmp_path) == []


# The internals, one by one.

X = jnp.arange(3.0)


def only(function, *arguments):
    """The only equation of a function."""
    body, _ = trace(function, *arguments)
    [eqn] = body.equations
    return eqn


def names_of_primitives() -> set[str]:
    gc.unfreeze()  # objects of other files are hidden
    return {each.name for each in gc.get_objects() if issubclass(type(each), Primitive)}


def tables() -> Iterator[tuple[str, str]]:
    for table, value in vars(primitives).items():
        if table.startswith("_") or not table.isupper():
            continue
        for name in [value] if isinstance(value, str) else value:
            yield table, name


def test_every_primitive_has_its_name():
    known = names_of_primitives()
    missing = [f"{name} ({table})" for table, name in tables() if name not in known]
    assert not missing, f"JAX {jax.__version__} has no primitive {', '.join(missing)}"
    assert "reverse_only" in known and "no_such_primitive" not in known


def test_a_call_has_a_body_and_asks_for_nothing():
    eqn = only(jax.jit(lambda x: x + 1), X)
    assert name_of(eqn) == "jit"
    for name in ("in_shardings", "out_shardings", "in_layouts", "out_layouts"):
        assert name in eqn.params, name
    assert {type(each).__name__ for each in eqn.params["in_shardings"]} == {
        "UnspecifiedValue"
    }
    assert [name_of(each) for each in called_body(eqn).equations] == ["add"]


def test_a_call_that_asks_for_something_is_left_alone():
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    placed = only(jax.jit(lambda x: x + 1, in_shardings=device), X)
    assert called_body(placed) is None
    assert called_body(only(jnp.sin, X)) is None


def test_rules_of_differentiation_hold_their_body():
    one = jax.custom_jvp(lambda x: jnp.sin(x))
    one.defjvp(lambda primals, tangents: (one(*primals), tangents[0]))
    two = jax.custom_vjp(lambda x: jnp.sin(x))
    two.defvjp(lambda x: (two(x), None), lambda _, bar: (bar,))
    calls = {
        one: "custom_jvp_call",
        two: "custom_vjp_call",
        jax.checkpoint(jnp.sin): "remat2",
    }
    for function, name in calls.items():
        eqn = only(function, X)
        assert name_of(eqn) == name
        [body] = inner_bodies(eqn)
        assert [name_of(each) for each in body.equations] == ["sin"]
        assert len(body.inputs) == len(eqn.invars)
        assert called_body(eqn) is None


def test_loops_and_branches_hold_their_bodies():
    def step(carry, row):
        return carry * X[0] + row, row

    body, _ = trace(
        lambda c, a, xs: lax.scan(lambda c, x: (c * a + x, x), c, xs), *[1.0, 2.0, X]
    )
    [scan] = [each for each in body.equations if name_of(each) == "scan"]
    found = read_scan(scan)
    assert (found.num_consts, found.num_carried, found.length) == (1, 1, 3)
    assert len(found.body.inputs) == 3

    def loop(x, bound, added):
        return lax.while_loop(lambda c: c < bound, lambda c: c + added, x)

    found = read_while(only(loop, 1.0, 2.0, 3.0))
    assert (found.condition_consts, found.body_consts) == (1, 1)
    assert [name_of(each) for each in found.condition.equations] == ["lt"]
    assert [name_of(each) for each in found.body.equations] == ["add"]
    branches, _ = trace(lambda p, x: lax.cond(p, jnp.sin, jnp.cos, x), True, X)
    bodies = inner_bodies(branches.equations[-1])
    assert sorted(name_of(each.equations[0]) for each in bodies) == ["cos", "sin"]
    assert all(len(each.inputs) == 1 for each in bodies)
    assert (
        read_scan(branches.equations[-1]) is read_while(branches.equations[-1]) is None
    )


def test_a_product_says_what_it_contracts():
    dims = (((2,), (1,)), ((0,), (0,)))
    eqn = only(
        lambda x, y: lax.dot_general(x, y, dims, precision="highest"),
        jnp.ones((2, 3, 4)),
        jnp.ones((2, 4)),
    )
    found = read_dot(eqn)
    assert (found.dims, found.batch_dims) == dims
    assert found.precision == (lax.Precision.HIGHEST, lax.Precision.HIGHEST)
    assert found.is_plain and "out_sharding" in eqn.params
    assert read_dot(only(jnp.sin, X)) is None


def test_metadata_of_a_product_is_seen():
    def marked(x, y):
        with set_xla_metadata(mark="x"):
            return lax.dot_general(x, y, (((0,), (0,)), ((), ())))

    assert not read_dot(only(marked, X, X)).is_plain


def test_slices_and_splits_say_where_they_cut():
    table = jnp.ones((4, 6))

    def cuts(function):
        return [tuple(each) for each in read_cuts(only(function, table))]

    assert cuts(lambda x: lax.split(x, (1, 5), 1)) == [(1, 0, 1), (1, 1, 6)]
    assert cuts(lambda x: lax.slice(x, (1, 0), (3, 6))) == [(0, 1, 3)]
    assert cuts(lambda x: lax.slice(x, (1, 0), (3, 5))) == []
    assert cuts(lambda x: lax.slice(x, (0, 0), (4, 6), (2, 1))) == []
    assert cuts(jnp.sin) == []


def test_lookups_of_whole_rows_are_known_by_their_table_and_numbers():
    table, word, words = jnp.ones((7, 2, 3)), jnp.int32(1), jnp.ones((2, 2), jnp.int32)

    def lookup(function, numbers):
        body, _ = trace(function, table, numbers)
        inliner = Inliner()
        inliner.add(body, body.inputs)
        found = [read_lookup(each) for each in inliner.nodes]
        found = [each for each in found if each is not None]
        assert all(each.table is body.inputs[0] for each in found)
        return [(each.clips, shape_of(each.numbers)) for each in found]

    assert lookup(lambda x, k: x[k], word) == [(True, ())]
    assert lookup(lambda x, k: x[k], words) == [(False, (2, 2, 1))]
    assert lookup(lambda x, k: jnp.take(x, k, 0), words) == [(False, (2, 2, 1))]
    clipped = partial(jnp.take, axis=0, mode="clip")
    assert lookup(clipped, words) == [(True, (2, 2, 1))]
    # Not parts of rows, other axes, or rows with permuted axes.
    assert lookup(lambda x, k: x[k, 1], words) == []
    assert lookup(lambda x, k: x[:, k % 2], words) == []
    assert lookup(lambda x, k: lax.dynamic_slice(x, (k, 0, 0), (2, 2, 3)), word) == []
    first = GatherDimensionNumbers((0, 1), (0,), (0,))
    assert (
        lookup(lambda x, k: lax.gather(x, k[..., None], first, (1, 2, 3)), words) == []
    )


def test_numbers_of_other_equations():
    assert exponent_of(only(lambda x: x**-2, X)) == -2
    assert mantissa_bits(only(lambda x: lax.reduce_precision(x, 8, 7), X)) == 7
    assert exponent_of(only(jnp.sin, X)) is mantissa_bits(only(jnp.sin, X)) is None


def test_constants_of_a_closed_jaxpr_have_their_arrays():
    table = np.arange(3, dtype=np.float32)
    body, _ = trace(lambda x: x + table, X)
    [(var, value)] = body.constants.items()
    np.testing.assert_array_equal(value, table)
    assert var not in body.inputs and len(body.inputs) == 1
    again = body_of(jax.make_jaxpr(lambda x: x + table)(X).jaxpr)
    assert len(again.inputs) == 1


def test_equations_become_functions_again():
    table = np.arange(3, dtype=np.float32)
    body, _ = trace(lambda x: jnp.sin(x + table), X)
    function = as_function(body.inputs, body.equations, body.outputs, body.constants)
    np.testing.assert_allclose(function(X)[0], jnp.sin(X + table), rtol=1e-6)
    first, second = body.equations
    other = new_variable(first.outvars[0])
    changed = [rewire(first, outvars=[other]), rewire(second, [other])]
    function = as_function(body.inputs, changed, second.outvars, body.constants)
    np.testing.assert_allclose(function(X)[0], jnp.sin(X + table), rtol=1e-6)
    assert as_function(body.inputs, [], body.inputs)(X) == [X]


def test_equal_equations_have_equal_keys():
    def three(x):
        return lax.reduce_sum(x, (0,)), lax.reduce_sum(x, (0,)), lax.reduce_sum(x, (1,))

    body, _ = trace(three, jnp.ones((2, 3)))
    one, two, other = map(equation_key, body.equations)
    assert one == two != other
    acting, _ = trace(lambda x: [jax.debug.print("{}", x) for _ in range(2)], X)
    one, two = map(equation_key, acting.equations)
    assert one != two


def test_an_identity_without_forward_mode():
    class Refused(Exception):
        pass

    def refuse(*_, **__):
        raise Refused

    identity = reverse_only_identity(refuse)
    assert jax.jit(identity)(2.0) == jax.grad(lambda x: identity(x) ** 2)(1.0) == 2
    assert jax.vmap(identity)(X).shape == (3,)
    for forward in (
        lambda: jax.jvp(identity, (1.0,), (1.0,)),
        lambda: jax.jacfwd(identity)(1.0),
    ):
        with pytest.raises(Refused):
            forward()


# Internals of the persistent cache, and of the settings.


def run_from_cache():
    """Runs a function that is compiled or read from the cache."""
    jax.clear_caches()
    return float(jax.jit(lambda x: jnp.sin(x) * 3)(0.0))


@pytest.fixture
def entries(tmp_path):
    """Lists the programs in a new cache."""
    with own_cache_options():
        assert use_compilation_cache(tmp_path) == tmp_path
        yield lambda: sorted(tmp_path.glob("*-cache"))


def test_callers_of_a_listener_know_the_key_of_a_program(entries):
    keys = {_CACHE_HIT: [], _CACHE_MISS: []}

    def listen(event, **_):
        if event in keys:
            keys[event].append(cache_key_at(sys._getframe(1)))

    jax.monitoring.register_event_listener(listen)
    try:
        run_from_cache()
        run_from_cache()
    finally:
        jax.monitoring.unregister_event_listener(listen)
    assert keys[_CACHE_MISS] == keys[_CACHE_HIT] and len(keys[_CACHE_HIT]) == 1
    assert [entry_of(key) for key in keys[_CACHE_HIT]] == entries()


def test_callers_of_a_warning_know_the_key_of_a_damaged_program(entries):
    run_from_cache()
    [entry] = entries()
    entry.write_bytes(b"damaged")
    found = []

    class Filter:
        def match(self, text):
            if text.startswith(_JAX_WARNINGS):
                found.append((text, entry_of(cache_key_at(sys._getframe(1)) or "none")))
            return True

    with warnings.catch_warnings():
        warnings.filters.insert(0, ("ignore", Filter(), UserWarning, None, 0))
        run_from_cache()
    [(text, path)] = found
    assert text.startswith(_READING) and path == entry


def test_a_program_that_cannot_be_written_is_warned_of(entries, tmp_path):
    tmp_path.rmdir()
    tmp_path.write_text("no folder")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run_from_cache()
    texts = [str(each.message) for each in found]
    assert texts and all(each.startswith(_JAX_WARNINGS) for each in texts), texts


def test_all_settings_are_known_by_name():
    names = set(jax.config.values)
    assert {
        *("jax_enable_x64", "jax_default_matmul_precision", "jax_numpy_rank_promotion"),
        *("jax_default_prng_impl", "jax_disable_most_optimizations"),
        *("jax_compilation_cache_dir", "jax_enable_compilation_cache"),
        "jax_persistent_cache_min_compile_time_secs",
        "jax_persistent_cache_min_entry_size_bytes",
        KERNEL_CACHES_OPTION,
    } <= names
    # A thread's settings are attributes.
    with jax.default_matmul_precision("highest"):
        assert jax.config.jax_default_matmul_precision == "highest"
    for word in _OTHER_SETTINGS:
        assert any(word in name for name in names), word


@pytest.mark.parametrize("asks", [False, True])
def test_a_rule_says_whether_it_asks_for_zeros(asks):
    function = jax.custom_vjp(lambda x: x)
    function.defvjp(
        lambda x: (x.value if asks else x, None),
        lambda _, bar: (bar,),
        symbolic_zeros=asks,
    )
    [eqn] = jax.make_jaxpr(function)(jnp.ones(2)).eqns
    assert takes_symbolic_zeros(eqn) == asks


@pytest.mark.parametrize(
    ("options", "fills"),
    [
        ({"mode": "fill", "fill_value": 1.0}, True),
        ({"mode": "fill", "fill_value": 0.0}, False),
        ({"mode": "fill"}, False),
        ({"mode": "clip"}, False),
    ],
)
def test_a_gather_says_what_it_fills_with(options, fills):
    traced = jax.make_jaxpr(lambda x: x.at[jnp.array([1, 9])].get(**options))
    eqns = traced(jnp.ones(3)).eqns
    [eqn] = [each for each in eqns if name_of(each) == "gather"]
    assert fills_with_a_number(eqn) == fills
