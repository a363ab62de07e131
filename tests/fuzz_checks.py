"""Checks of the fuzzer in `tests/fuzz`: an oracle, and poisoned instances.

The oracle is the model itself, run for each instance without edbatch: its outputs, and
its gradients with respect to parameters and floating inputs. Then one instance is
poisoned, and outputs and gradients of the others must not change in a single bit.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import fuzz_models
import jax
import jax.numpy as jnp
import numpy as np
from fuzz_cases import POISONS, Case
from fuzz_models import Instance, make_model, make_params, reads

import edbatch as eb
from edbatch.instance_results import split_instances

_POISONED_INPUTS = 16
# One rounding error, relative to the largest number; 512 of them are allowed.
_OF_GRADIENTS = 1e-6
_COARSE = 1e-4  # where values or cotangents are rounded to 16 bits


class Mismatch(AssertionError):
    """A result differs from the oracle's."""


# --- numbers


@dataclass
class Numbers:
    """Outputs and gradients of a minibatch.

    Attributes:
        outputs: The model's result for each instance.
        weights: The cotangents of each instance's result.
        params: Gradients with respect to the floating parameters, by name.
        inputs: Gradients with respect to inputs, by instance and step.
    """

    outputs: list[Any]
    weights: list[Any] = field(default_factory=list)
    params: dict[str, np.ndarray] = field(default_factory=dict)
    inputs: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)


def is_float(leaf: Any) -> bool:
    return bool(jnp.issubdtype(jnp.result_type(leaf), jnp.floating))


def weights_of(result: Any) -> Any:
    """Random cotangents for a result, a few of them zero."""
    rng = np.random.default_rng(5)

    def draw(leaf: Any) -> Any:
        if not is_float(leaf):
            return leaf  # including the lengths of ragged lists
        found = rng.standard_normal(leaf.shape)
        found = np.where(rng.random(leaf.shape) < 0.1, 0, found)
        return found.astype(leaf.dtype)

    return jax.tree.map(draw, result)


def weighted(result: Any, weights: Any) -> Any:
    """Weighted sum of all floating outputs."""
    pairs = zip(jax.tree.leaves(result), jax.tree.leaves(weights), strict=True)
    return sum(
        (jnp.sum((x * w).astype(jnp.float32)) for x, w in pairs if is_float(x)),
        jnp.float32(0),
    )


def named_floats(params: Any) -> dict[str, Any]:
    """Floating leaves of a pytree, by their path."""
    found = jax.tree_util.tree_flatten_with_path(params)[0]
    return {jax.tree_util.keystr(path): leaf for path, leaf in found if is_float(leaf)}


def with_floats(params: Any, floats: dict[str, Any]) -> Any:
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: floats.get(jax.tree_util.keystr(path), leaf), params
    )


def is_input(value: Any) -> bool:
    return value is not None


class Batch:
    """A case's program, batched."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.program = case.program
        self.params = make_params(case.program)
        self.model = make_model(case.program)
        self.batched = case.configuration.batch(self.model, self.params)
        self.key = jax.random.key(3) if case.program.draws else None
        self.gradient = jax.jit(self._gradient)
        self.places: dict[tuple[int, int], list[tuple[int, int]]] = {}

    def plan(self, instances: tuple[Instance, ...]) -> Any:
        settings, batched = self.case.configuration, self.batched
        given: Any = instances
        if settings.recorded:
            order = np.random.default_rng(1).permutation(len(instances))
            kept = {k: batched.record(instances[k]) for k in order}
            given = [kept[k] for k in range(len(instances))]
        plan = batched.plan(given)
        if settings.cached:
            plan = batched.plan(given)
            assert plan.report is not None
            if not plan.report.cached:
                raise Mismatch("a plan of the same minibatch is not found in the cache")
        return plan

    def run(self, params: Any, plan: Any) -> Numbers:
        """Returns outputs and gradients; only outputs if rows are reused."""
        count = len(self.program.instances)
        if self.case.configuration.reuse == "always":
            result = self.batched.apply(params, plan, rng=self.key)
            return Numbers(split_instances(result, count))
        (of_params, of_pools), result = self.gradient(
            named_floats(params),
            {kind: pool for kind, pool in plan.pools.items() if is_float(pool)},
            params,
            plan,
        )
        pools = {kind: np.asarray(each) for kind, each in of_pools.items()}
        inputs = {
            place: np.sum([pools[kind][row] for kind, row in rows], axis=0)
            for place, rows in self.places.items()
        }
        own = {name: np.asarray(each) for name, each in of_params.items()}
        weights = split_instances(weights_of(result), count)
        return Numbers(split_instances(result, count), weights, own, inputs)

    def _gradient(self, floats: Any, pools: Any, params: Any, plan: Any) -> Any:
        def loss(floats: Any, pools: Any) -> Any:
            given = replace(plan, pools={**plan.pools, **pools})
            some = with_floats(params, floats)
            result = self.batched.apply(some, given, rng=self.key)
            return weighted(result, weights_of(result)), result

        return jax.grad(loss, argnums=(0, 1), has_aux=True)(floats, pools)

    def find_places(self, plan: Any) -> None:
        """Finds each input's rows in the pools by its random numbers."""
        rows: dict[bytes, list[tuple[int, int]]] = {}
        for kind, pool in plan.pools.items():
            if is_float(pool):
                for row in range(1, len(pool)):
                    rows.setdefault(_content(pool[row]), []).append((kind, row))
        owners: dict[bytes, list[tuple[int, int]]] = {}
        for k, each in enumerate(self.program.instances):
            for j, value in enumerate(each.inputs):
                if is_input(value):
                    owners.setdefault(_content(value), []).append((k, j))
        self.places = {
            places[0]: rows[content]
            for content, places in owners.items()
            if len(places) == 1 and content in rows
        }
        of_inputs = sum(map(len, self.places.values()))
        if any(map(len, owners.values())) and not of_inputs:
            raise Mismatch("no input was found in the pools")

    def oracle(self, params: Any, weights: list[Any]) -> Numbers:
        """Outputs and gradients of each instance by itself."""
        found = Numbers([])
        gradients: dict[str, Any] = {
            name: np.zeros(leaf.shape, np.float64)
            for name, leaf in named_floats(params).items()
        }
        for k, instance in enumerate(self.program.instances):
            share = weights[k] if weights else None
            result, own = self.unbatched(params, instance, k, share)
            found.outputs.append(jax.tree.map(np.asarray, result))
            if own is None:
                continue
            for name, each in own[0].items():
                gradients[name] += np.asarray(each, np.float64)
            for j, each in own[1].items():
                found.inputs[k, j] = np.asarray(each)
        found.params = gradients if weights else {}
        return found

    def unbatched(self, params: Any, instance: Instance, k: int, weights: Any) -> Any:
        given = {
            j: jnp.asarray(each, jnp.result_type(each))
            for j, each in enumerate(instance.inputs)
            if is_input(each)
        }

        def loss(floats: Any, inputs: dict[int, Any]) -> Any:
            some = with_floats(params, floats)
            values = [inputs.get(j, each) for j, each in enumerate(instance.inputs)]
            with nullcontext() if self.key is None else eb.cell_keys(self.key, k):
                result = self.model(some, Instance(instance.steps, tuple(values)))
            return 0.0 if weights is None else weighted(result, weights), result

        if weights is None:
            return loss(named_floats(params), given)[1], None
        gradient = jax.grad(loss, argnums=(0, 1), has_aux=True)
        own, result = gradient(named_floats(params), given)
        return result, own


def _content(value: Any) -> bytes:
    """The bytes of a floating input as it lies in its pool."""
    array = np.asarray(value, jnp.result_type(value))
    return repr((array.shape, array.dtype.name)).encode() + array.tobytes()


# --- comparisons


def check(case: Case) -> None:
    """Compares a case with its oracle, and poisons it.

    Raises:
        Mismatch: Something differs.
    """
    batch = Batch(case)
    program = case.program
    plan = batch.plan(program.instances)
    batch.find_places(plan)
    clean = batch.run(batch.params, plan)
    expected = batch.oracle(batch.params, clean.weights)
    rounding = _COARSE if program.is_coarse else 0.0
    for k, (own, other) in enumerate(zip(clean.outputs, expected.outputs, strict=True)):
        _assert_close(own, other, f"output of instance {k}", rounding)
    rounding = max(rounding, _OF_GRADIENTS)
    for name, own in clean.params.items():
        what = f"gradient of params{name}"
        _assert_close(own, expected.params[name], what, rounding)
    for place, own in clean.inputs.items():
        what = f"gradient of input {place}"
        _assert_close(own, expected.inputs[place], what, rounding)
    if case.configuration.loaded and not program.draws:
        _check_loader(batch, expected, rounding)
    for name in case.poisons:
        _check_poisoned_inputs(batch, plan, clean, name)
        _check_poisoned_rows(batch, plan, clean, name)
    if jax.device_count() > 1 and not program.draws:
        eb.verify(batch.batched.sharded(), batch.params, program.instances)


def _check_loader(batch: Batch, expected: Numbers, rounding: float) -> None:
    instances = batch.program.instances
    loader = eb.Loader(batch.batched, [*instances], len(instances), seed=1)
    for minibatch in loader:
        result = batch.batched.apply(batch.params, minibatch.plan)
        found = split_instances(result, len(instances))
        for place, k in enumerate(minibatch.index):
            what = f"output of instance {k} from the loader"
            _assert_close(found[place], expected.outputs[k], what, rounding)


def _check_poisoned_inputs(batch: Batch, plan: Any, clean: Numbers, name: str) -> None:
    """Poisons inputs in their pools, one at a time, under the same plan."""
    places = sorted(batch.places)
    rng = np.random.default_rng(len(places))
    # With few inputs all are poisoned: it matters which row of which chunk it is.
    for k in rng.permutation(len(places))[:_POISONED_INPUTS]:
        place = places[k]
        pools = {kind: np.array(pool) for kind, pool in plan.pools.items()}
        whole = rng.random() < 0.5
        for kind, row in batch.places[place]:
            one = (row,) if whole else (row, *(0,) * (pools[kind].ndim - 1))
            pools[kind][one] = POISONS[name]
        found = batch.run(batch.params, replace(plan, pools=pools))
        what = f"{name} in input {place}"
        _assert_isolated(batch, place[0], found, clean, what)


def _check_poisoned_rows(batch: Batch, plan: Any, clean: Numbers, name: str) -> None:
    """Poisons parameters that only the rare instance reads."""
    program = batch.program
    instance = program.instances[program.rare]
    own = reads(program, batch.params, instance)
    params = batch.params
    if ("table", fuzz_models.RARE_WORD) in own:
        table = params["table"].at[fuzz_models.RARE_WORD].set(POISONS[name])
        params = params | {"table": table}
    if ("stack", fuzz_models.RARE_LAYER) in own:
        stack = params["stack"].at[fuzz_models.RARE_LAYER].set(POISONS[name])
        params = params | {"stack": stack}
    if ("layers", fuzz_models.RARE_LAYER) in own:
        bad = jnp.full_like(params["layers"][-1]["w"], POISONS[name])
        params = params | {"layers": [*params["layers"][:-1], {"w": bad}]}
    if params is not batch.params:
        found = batch.run(params, plan)
        what = f"{name} in rows that only instance {program.rare} reads"
        _assert_isolated(batch, program.rare, found, clean, what)


def _assert_isolated(
    batch: Batch, poisoned: int, found: Numbers, clean: Numbers, what: str
) -> None:
    """Checks that other instances' outputs and gradients are the same, bit for bit."""
    for k, (own, other) in enumerate(zip(found.outputs, clean.outputs, strict=True)):
        if k != poisoned:
            _assert_same(own, other, f"{what}: output of instance {k}")
    for place, own in found.inputs.items():
        if place[0] != poisoned:
            _assert_same(own, clean.inputs[place], f"{what}: gradient of input {place}")
    read = reads(batch.program, batch.params, batch.program.instances[poisoned])
    for name, own in found.params.items():
        kept = _unread(name, own, read)
        _assert_same(
            own[kept], clean.params[name][kept], f"{what}: gradient of params{name}"
        )


def _unread(name: str, array: np.ndarray, read: set[Any]) -> np.ndarray:
    """Mask of a parameter's rows that are not in `read`."""
    top, *rest = name.strip("[]").replace("'", "").split("][")
    if top == "project":
        top += rest[0]
    rows = {row for each, row in read if each == top}
    kept = np.ones(len(array), bool)
    if top == "layers":
        kept[:] = int(rest[0]) not in rows
    elif None in rows:
        kept[:] = False
    else:
        kept[[*rows]] = False
    return kept


def _assert_same(found: Any, expected: Any, what: str) -> None:
    for own, other in _pairs(found, expected, what):
        if own.tobytes() != other.tobytes():
            both = own.astype(np.float64), other.astype(np.float64)
            raise Mismatch(f"{what} is {both[0]} but was {both[1]}")


def _assert_close(found: Any, expected: Any, what: str, rounding: float) -> None:
    """Compares up to rounding; infinities and NaN must be in the same places."""
    for own, other in _pairs(found, expected, what):
        if not is_float(own):
            if (own != other).any():
                raise Mismatch(f"{what} is {own} but should be {other}")
            continue
        eps = max(float(jnp.finfo(own.dtype).eps), rounding)
        a, b = own.astype(np.float64), other.astype(np.float64)
        largest = np.abs(b[np.isfinite(b)]).max(initial=1.0)
        allowed = 512 * eps * largest
        with np.errstate(invalid="ignore"):
            gap = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, np.abs(a - b))
        if not (gap <= allowed).all():
            raise Mismatch(f"{what} is {a} but should be {b}")


def _pairs(found: Any, expected: Any, what: str) -> list[tuple[Any, Any]]:
    trees = jax.tree.structure(found), jax.tree.structure(expected)
    if trees[0] != trees[1]:
        raise Mismatch(f"{what} has structure {trees[0]} but should have {trees[1]}")
    pairs = [
        (np.asarray(own), np.asarray(other))
        for own, other in zip(
            jax.tree.leaves(found), jax.tree.leaves(expected), strict=True
        )
    ]
    for own, other in pairs:
        if own.shape != other.shape:
            raise Mismatch(f"{what} has shape {own.shape} but should be {other.shape}")
    return pairs


def shrink(
    case: Case,
    error: Exception,
    error_of: Callable[[Case], Exception | None],
    tries: int,
) -> tuple[Case, Exception]:
    """Looks for a smaller case that fails in the same way.

    Args:
        case: The failing case.
        error: Its error.
        error_of: Runs a case; returns the error, if any.
        tries: Maximum number of cases to run.

        Returns:
            The smallest case found, and its error.
    """
    simpler = case.simpler()
    while tries and (simple := next(simpler, None)) is not None:
        tries -= 1
        found = error_of(simple)
        if found is not None and type(found) is type(error):
            case, error, simpler = simple, found, simple.simpler()
    return case, error
