"""Records many models and prints a digest of each recording as JSON.

Run as a program, with or without the compiled hot path of recording (see
`edbatch.recording_is_compiled`), to compare the two. Covers all workloads, random
programs, calls with arguments of every kind, and errors in calls.
"""

import hashlib
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import asking_models
import fuzz_models
import jax
import jax.numpy as jnp
import noisy_programs
import numpy as np
import programs

import edbatch as eb
from edbatch.errors import ManyTypesWarning
from edbatch.graph.call_memory import CallMemory
from edbatch.graph.parameter_structure import abstract
from edbatch.graph.recorder import record
from edbatch.graph.type_table import TypeTable
from edbatch.models import WORKLOADS, get_workload

PARAMS = {"w": np.ones((3, 3), np.float32), "layers": [np.ones(3, np.float32)] * 2}


def digest(graph: Any) -> str:
    """A hash of everything in a recording, types included."""
    parts = [
        repr(each)
        for node_type in graph.types.types
        for each in (
            node_type.key,
            node_type.operand_kinds,
            node_type.external_kinds,
            node_type.output_kinds,
            node_type.output_tree,
            node_type.template.treedef,
            node_type.template.operands,
            node_type.template.externals,
            node_type.template.paddings,
        )
    ]
    parts += map(str, graph.types.avals)
    parts.append(str(graph.outputs.tree))
    parts.append(str(graph.num_values))
    arrays = [
        graph.node_type,
        graph.operands,
        graph.external_rows,
        graph.instance_nodes,
        *graph.outputs.columns,
        *graph.outputs.lengths,
    ]
    for kind, pool in sorted(graph.externals.items()):
        parts.append(str(kind))
        arrays.append(np.asarray(pool))
    for each in arrays:
        parts += [str(each.dtype), str(each.shape), each.tobytes().hex()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def recorded(model: Any, params: Any, instances: list[Any]) -> list[str]:
    """Records all instances at once, again once all calls are known, and one by one."""
    types, memory = TypeTable(abstract(params), model), CallMemory()
    graphs = [record(model, types, instances, memory) for _ in range(2)]
    graphs += [record(model, types, [each], memory) for each in instances[:3]]
    return [f"{each.num_nodes} {digest(each)}" for each in graphs]


def workloads() -> Iterator[tuple[str, Any]]:
    for name in sorted(WORKLOADS):
        workload = get_workload(name, vocabulary_size=50)
        params = workload.init_params(jax.random.key(0), 4)
        instances = workload.sample(np.random.default_rng(0), 6)
        yield name, recorded(workload.model, params, instances)


def random_programs(count: int) -> Iterator[tuple[str, Any]]:
    for seed in range(count):
        rng = np.random.default_rng(seed)
        program = fuzz_models.sample_program(rng, seed, frozenset())
        model, params = (
            fuzz_models.make_model(program),
            fuzz_models.make_params(program),
        )
        yield f"program {seed}", recorded(model, params, [*program.instances])


# --- calls with arguments of every kind


@eb.cell
def look(*args, **kwargs):
    leaves = [jnp.ravel(jnp.asarray(x))[0] for x in jax.tree.leaves((args, kwargs))]
    return sum((x.astype(jnp.float32) for x in leaves), jnp.float32(0)) + jnp.ones(3)


@eb.cell
def three(x):
    return x, x + 1, x[:2]


@eb.cell
def one_in_a_tuple(x):
    return (x,)


@eb.cell(padded=("items",), lengths=(2, 3))
def padded(items, scale=2.0, *, mask):
    leaves = [x.reshape(x.shape[0], -1).sum(1) for x in jax.tree.leaves(items)]
    return sum(jnp.where(mask, x, 0).sum() for x in leaves) * scale * jnp.ones(3)


@eb.cell(padded=("left", "right"), static=("times",))
def two_lists(left, times, right, left_mask, right_mask):
    return times * (left.sum(0) + right.sum(0))


@eb.cell(static=("how",))
def chosen(x, how):
    return x * (2 if how == 2 else 3)


@eb.cell
def noisy(x, rng=None):
    return x if rng is None else x + jax.random.normal(rng, x.shape)


KEY = np.arange(2, dtype=np.uint32)
NANS = float("nan"), -float("nan")
ARRAY = np.arange(3, dtype=np.float32)
FROZEN = np.arange(6, dtype=np.float32).reshape(2, 3)
FROZEN.setflags(write=False)
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "no arguments": lambda p, x: look(),
    "numbers": lambda p, x: look(1, 2.5, True, 1j, np.int32(3), np.bool_(0), x),
    "numbers of other classes": lambda p, x: look(np.int8(1), np.float16(2), x),
    "arrays": lambda p, x: look(ARRAY, ARRAY, FROZEN, FROZEN[0], ARRAY.astype(">f4")),
    "scalars": lambda p, x: look(np.array(1), np.array([True]), np.zeros((0, 2)).sum()),
    "arrays of JAX": lambda p, x: look(jnp.ones(2), x),
    "containers": lambda p, x: look((), [], ((x, [x]),), [[[1, x]], (x, 2)]),
    "a dict": lambda p, x: look({"b": x, "a": (x, 1)}, None),
    "keywords": lambda p, x: look(x, y=x, k=ARRAY),
    "parts": lambda p, x: look(p, p["w"], [p["layers"][0], (p["layers"][1], x)]),
    "many of each": lambda p, x: look([x] * 200, [[k] for k in range(200)], *[p] * 9),
    "deep": lambda p, x: look(nested(60, x), nested(70, x)),
    "a tuple of three": lambda p, x: three(three(x)[1]),
    "a tuple of one": lambda p, x: one_in_a_tuple(*one_in_a_tuple(x)),
    "padded": lambda p, x: [padded([x] * k) for k in range(1, 9)][-1],
    "padded pairs": lambda p, x: padded([(x, look(x))] * 2),
    "padded inputs": lambda p, x: padded([1, 2, 3]),
    "padded with a number": lambda p, x: padded([x, x], 3.0),
    "padded by name": lambda p, x: padded(items=[x], scale=1.0),
    "two lists": lambda p, x: two_lists([x, x], 3, [x] * 5),
    "constants": lambda p, x: [chosen(x, k) for k in (2, 2.0, True, "a", (1, 2.0))][-1],
    "not a number": lambda p, x: [chosen(x, each) for each in NANS][-1],
    "keys": lambda p, x: [noisy(x), noisy(noisy(x)), noisy(x, None), noisy(x, rng=KEY)],
}


def nested(depth: int, x: Any) -> Any:
    for _ in range(depth):
        x = (x,)
    return x


def calls() -> Iterator[tuple[str, Any]]:
    for name, call in CALLS.items():

        def model(params: Any, word: Any, call: Any = call) -> Any:
            first = look(word)
            return [call(params, first), call(params, look(first, 2))]

        yield name, recorded(model, PARAMS, [1, 2, 3])


RESULTS: dict[str, Callable[[Any, list[Any]], Any]] = {
    "a dict": lambda x, many: {"b": x, "a": many[0]},
    "a dict in another order": lambda x, many: (
        {"b": x, "a": x} if len(many) > 2 else {"a": x, "b": x}
    ),
    "a dict of keys in vain": lambda x, many: {2: x, 1: many[-1]},
    "lists": lambda x, many: [many, many[:1], []],
    "a list of two kinds": lambda x, many: (many[:0], [(x, each) for each in many]),
    "a dict of lists": lambda x, many: {"x": many, "y": x},
    "kinds that differ": lambda x, many: {"x": x if len(many) > 2 else three(x)[2]},
    "keys that differ": lambda x, many: {"x" if len(many) > 2 else "y": x},
    "a dict of a number": lambda x, many: {"x": x, "n": len(many)},
}


def results() -> Iterator[tuple[str, Any]]:
    for name, result in RESULTS.items():

        def model(params: Any, count: int, result: Any = result) -> Any:
            return result(look(count), [look(k) for k in range(count)])

        try:
            yield f"result: {name}", recorded(model, PARAMS, [1, 2, 3, 2])
        except eb.RecordingError as error:
            yield f"result: {name}", str(error)


# --- errors

FAULTS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "foreign": lambda p, x, old: look(old),
    "foreign in a list": lambda p, x, old: look([x, old]),
    "foreign in a padded list": lambda p, x, old: padded([x, old]),
    "foreign in a dict": lambda p, x, old: look({"x": old}),
    "arithmetic": lambda p, x, old: look(x + 1),
    "text": lambda p, x, old: padded(["a"]),
    "no list": lambda p, x, old: padded(x),
    "empty": lambda p, x, old: padded([]),
    "unlike": lambda p, x, old: padded([x, (x, x)]),
    "of two origins": lambda p, x, old: padded([x, 1]),
    "no constant": lambda p, x, old: chosen(x, [1]),
    "an array as a constant": lambda p, x, old: chosen(x, ARRAY),
    "too few": lambda p, x, old: three(),
    "too many": lambda p, x, old: three(x, x),
    "unknown name": lambda p, x, old: three(x, y=1),
    "a mask": lambda p, x, old: padded([x], mask=True),
    "too large": lambda p, x, old: look(2**40),
    "a date": lambda p, x, old: look(np.array(["2020-01-01"], "M8[D]")),
    "an object": lambda p, x, old: look(object()),
    "a key": lambda p, x, old: look(jax.random.key(0)),
    "a list in itself": lambda p, x, old: look(in_itself()),
    "a parameter that is not there": lambda p, x, old: look(p["u"]),
    "a value": lambda p, x, old: eb.value(x),
}


def in_itself() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def faults() -> Iterator[tuple[str, Any]]:
    for name, call in FAULTS.items():
        kept: list[Any] = []

        def model(params: Any, word: Any, call: Any = call, kept: Any = kept) -> Any:
            kept.append(look(word))
            return call(params, kept[-1], kept[0])

        types, memory = TypeTable(abstract(PARAMS), model), CallMemory()
        messages = []
        for instances in ([1], [1, 2]):
            try:
                record(model, types, instances, memory)
            except Exception as error:
                notes = getattr(error, "__notes__", [])
                # Python 3.13 sometimes adds this.
                text = str(error).removesuffix(" while calling a Python object")
                messages.append([type(error).__name__, text, *notes])
            else:
                messages.append(["recorded"])
        yield f"fault: {name}", messages


def asking() -> Iterator[tuple[str, Any]]:
    """Recordings of instances that were suspended to wait for values."""
    batched = eb.batch(asking_models.shift_reduce)
    words = [[1, 2, 3, 4], [5], [6, 7, 8]]
    rollout = batched.rollout(asking_models.make_params(), words)
    yield "shift-reduce", [digest(each) for each in rollout.recordings]


def noise() -> Iterator[tuple[str, Any]]:
    rng = np.random.default_rng(0)
    params = programs.make_params(0)
    for k in range(5):
        instances = [noisy_programs.sample_noisy(rng, 12) for _ in range(4)]
        found = recorded(noisy_programs.interpret_noisy, params, instances)
        yield f"noise {k}", found


def main() -> None:
    warnings.simplefilter("ignore", ManyTypesWarning)
    groups = (workloads(), random_programs(30), noise(), calls(), results())
    groups += (faults(), asking())
    found = {name: each for group in groups for name, each in group}
    json.dump({"compiled": eb.recording_is_compiled(), "found": found}, sys.stdout)


if __name__ == "__main__":
    main()
