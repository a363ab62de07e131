"""Random dynamic models of the fuzzer in `tests/fuzz`, represented as data.

A `Program` is one model with a minibatch of instances; an instance is a list of steps,
each an operation and the numbers by which it chooses its operands. `run` is the model.
Every operation works on whatever values exist, so any list of steps is a program and
steps can be left out to shrink a failing one.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import fuzz_cells
import jax
import jax.numpy as jnp
import numpy as np
import programs
from jax import Array
from random_cells import random_cell

import edbatch as eb

SIZE = 3
WORDS = 7
RARE_WORD = WORDS  # only the poisoned instance reads these
LAYERS = 2
RARE_LAYER = LAYERS
VECTOR = ((SIZE,), "float32")
PAIR = ((2,), "float32")
MATRIX = ((2, SIZE), "float32")
SCALAR = ((), "float32")
HALF = ((SIZE,), "bfloat16")
HALF16 = ((SIZE,), "float16")
INDEX = ((), "int32")
Kind = tuple[tuple[int, ...], str]
COARSE = ("low", "low16", "high", "high16", "bfloat16_scalar")
# The type of a scalar input when it reaches the cell.
SCALARS: tuple[Callable[[Any], Any], ...] = (float, np.float32, jnp.float32)


@dataclass(frozen=True)
class Step:
    """An operation, and how it chooses its operands."""

    operation: str
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Instance:
    """One input of the model.

    Attributes:
        steps: The steps that it runs.
        inputs: Floating external inputs; a step that reads one reads the input with the
            step's own number.
    """

    steps: tuple[Step, ...]
    inputs: tuple[Any, ...]

    def __str__(self) -> str:
        steps = (f"{each.operation}{list(each.numbers)}" for each in self.steps)
        return " ".join(steps)


@dataclass(frozen=True)
class Program:
    """A model and a minibatch.

    Attributes:
        seed: Seed of the parameters and of the random cells.
        operations: Names of the operations that the instances use.
        result: What the model returns, one of `RESULTS`.
        instances: The minibatch.
        rare: Index of the instance that reads rows and layers that no other one reads.
    """

    seed: int
    operations: tuple[str, ...]
    result: str
    instances: tuple[Instance, ...]
    rare: int

    def __str__(self) -> str:
        lines = [f"  {k}: {each}" for k, each in enumerate(self.instances)][:20]
        head = f"seed {self.seed}, result {self.result}, rare {self.rare}"
        return "\n".join((f"{head}, {len(self.instances)} instances", *lines))

    @property
    def draws(self) -> bool:
        """Whether cells draw random numbers."""
        return bool({"drop", "noisy_list"} & {*self.operations})

    @property
    def is_coarse(self) -> bool:
        """Whether 16-bit floats occur."""
        return bool({*COARSE} & {*self.operations})


# --- cells


# --- the model


@dataclass
class Run:
    """State of the model while it runs on one instance.

    Attributes:
        params: Parameters.
        instance: The instance.
        extra: A random cell, and the kinds of its inputs.
        values: Values so far, by kind.
        reads: Names of the parameters that were read, some with a row or a layer.
        parameters: Parameters among the values.
    """

    params: Any
    instance: Instance
    extra: Any
    values: dict[Kind, list[Any]] = field(default_factory=dict)
    reads: set[tuple[str, int | None]] = field(default_factory=set)
    parameters: list[Any] = field(default_factory=list)
    number: int = 0

    def keep(self, tree: Any) -> None:
        for value in jax.tree.leaves(tree):
            kind = (tuple(value.shape), np.dtype(value.dtype).name)
            self.values.setdefault(kind, []).append(value)

    def input(self) -> Any:
        return self.instance.inputs[self.number]

    def reading(self, *names: str, row: int | None = None) -> Any:
        self.reads |= {(name, row) for name in names}
        return self.params

    def pick(self, k: int, kind: Kind = VECTOR) -> Any:
        if not self.values.get(kind):
            self._make(kind, k)
        found = self.values[kind]
        return found[k % len(found)]

    def computed(self, k: int) -> Any:
        """A vector from a cell: nonlinear rules need more than parameters."""
        value = self.pick(k)
        of_cell = all(value is not each for each in self.parameters)
        return value if of_cell else fuzz_cells.plain(value)

    def several(self, numbers: tuple[int, ...], kind: Kind = VECTOR) -> list[Any]:
        return [self.pick(k, kind) for k in numbers]

    def _make(self, kind: Kind, k: int) -> None:
        """Makes the first value of a kind from values of other kinds."""
        if kind == VECTOR:
            self.keep(fuzz_cells.embed(self.reading("table", row=k % WORDS), k % WORDS))
        elif kind == MATRIX:
            self.keep(fuzz_cells.outer(self.pick(k), self.pick(k + 1)))
        elif kind == HALF:
            self.keep(fuzz_cells.low(self.reading("low"), self.pick(k)))
        elif kind == HALF16:
            self.keep(fuzz_cells.low16(self.pick(k)))
        elif kind == INDEX:
            self.keep(fuzz_cells.index_of(self.pick(k)))
        elif kind == SCALAR:
            self.keep(fuzz_cells.split(self.reading("mix"), self.pick(k))["sum"])
        else:
            [size] = kind[0]
            params = self.reading(f"project{size}")
            self.keep(fuzz_cells.resize(params["project"][str(size)], self.pick(k)))

    def word(self, k: int) -> int:
        """The index of an embedding; 97 is the rare one."""
        return RARE_WORD if k == 97 else k % WORDS

    def layer(self, k: int) -> int:
        return RARE_LAYER if k == 97 else k % LAYERS


def _random(run: Run, n: tuple[int, ...]) -> Any:
    cell, inputs = run.extra
    run.reading("random")
    chosen = [
        run.pick(n[0] + k, (each.shape, "float32")) if each.ndim == 1 else each
        for k, each in enumerate(inputs[:-1])
    ]
    return cell(run.params["random"], *chosen, n[-1] % 3)


def _attend_pairs(run: Run, n: tuple[int, ...]) -> Any:
    pairs = [(run.pick(k), run.pick(k, PAIR)) for k in n]
    return programs.attend_pairs(run.params, pairs)


def _embed(run: Run, n: tuple[int, ...]) -> Any:
    word = run.word(n[0])
    return fuzz_cells.embed(run.reading("table", row=word), word)


def _bag(run: Run, n: tuple[int, ...]) -> Any:
    words = [run.word(k) for k in n]
    for word in words:
        run.reading("table", row=word)
    return fuzz_cells.bag(run.params, words)


def _layer(run: Run, n: tuple[int, ...]) -> Any:
    k = run.layer(n[0])
    return fuzz_cells.layer(run.reading("layers", row=k)["layers"][k], run.pick(n[-1]))


def _expert(run: Run, n: tuple[int, ...]) -> Any:
    k = run.layer(n[0])
    return fuzz_cells.expert(run.reading("stack", row=k), k, run.pick(n[-1]))


def _found(run: Run, n: tuple[int, ...]) -> Any:
    """Looks up an embedding by a computed index."""
    for row in range(SIZE):
        run.reading("table", row=row)
    return fuzz_cells.embed(run.params, run.pick(n[0], INDEX))


def _resize(run: Run, n: tuple[int, ...]) -> Any:
    size = 2 + 2 * (n[0] % 2)
    params = run.reading(f"project{size}")
    return fuzz_cells.resize(params["project"][str(size)], run.pick(n[-1]))


def _parameter(run: Run, n: tuple[int, ...]) -> Any:
    run.parameters.append(run.reading("only")["only"])
    return run.parameters[-1]


def _scaled(run: Run, n: tuple[int, ...]) -> Any:
    return fuzz_cells.scale(run.pick(n[-1]), run.input())


OPERATIONS: dict[str, Callable[[Run, tuple[int, ...]], Any]] = {
    "leaf": lambda r, n: fuzz_cells.leaf(r.reading("mix", "bias"), r.input()),
    "embed": _embed,
    "start": lambda r, n: fuzz_cells.start(r.reading("mix")),
    "layer": _layer,
    "expert": _expert,
    "join": lambda r, n: fuzz_cells.join(
        r.reading("mix")["mix"], r.pick(n[0]), r.pick(n[-1])
    ),
    "join_other": lambda r, n: fuzz_cells.join(
        r.reading("other")["other"], r.pick(n[0]), r.pick(n[-1])
    ),
    "step": lambda r, n: fuzz_cells.step(r.reading("mix"), r.input(), r.pick(n[-1])),
    "parameter": _parameter,
    "only": lambda r, n: fuzz_cells.only(r.reading("only"), r.pick(n[0])),
    "scale": _scaled,
    "bfloat16_scalar": _scaled,
    "outer": lambda r, n: fuzz_cells.outer(r.pick(n[0]), r.pick(n[-1])),
    "apply_matrix": lambda r, n: fuzz_cells.apply_matrix(
        r.pick(n[0], MATRIX), r.pick(n[-1])
    ),
    "split": lambda r, n: fuzz_cells.split(r.reading("mix"), r.pick(n[0])),
    "widen": lambda r, n: fuzz_cells.widen(
        r.reading("widen")["widen"], r.pick(n[0], PAIR), r.pick(n[-1])
    ),
    "resize": _resize,
    "total": lambda r, n: programs.total(r.several(n)),
    "attend": lambda r, n: programs.attend(
        r.reading("mix"), r.pick(n[0]), r.several(n)
    ),
    "attend_pairs": _attend_pairs,
    "bag": _bag,
    "power": lambda r, n: fuzz_cells.raise_to(r.pick(n[0]), 2 + n[-1] % 2),
    "drop": lambda r, n: fuzz_cells.drop(r.pick(n[0])),
    "noisy_list": lambda r, n: fuzz_cells.noisy_list(r.several(n)),
    "normalize": lambda r, n: fuzz_cells.normalize(r.pick(n[0])),
    "normalize_input": lambda r, n: fuzz_cells.normalize(r.input()),
    "root": lambda r, n: fuzz_cells.root(r.input()),
    "logarithm": lambda r, n: fuzz_cells.logarithm(r.reading("only"), r.input()),
    "scan": lambda r, n: fuzz_cells.scanned(r.reading("mix", "bias"), r.pick(n[0])),
    "cond": lambda r, n: fuzz_cells.chosen(r.reading("mix"), r.pick(n[0])),
    "while": lambda r, n: fuzz_cells.settled(r.reading("mix"), r.pick(n[0])),
    "rule": lambda r, n: fuzz_cells.ruled(r.reading("mix"), r.computed(n[0])),
    "rule_of_parameters": lambda r, n: fuzz_cells.ruled_parameters(
        r.reading("only"), r.computed(n[0])
    ),
    "low": lambda r, n: fuzz_cells.low(r.reading("low"), r.pick(n[0])),
    "low16": lambda r, n: fuzz_cells.low16(r.pick(n[0])),
    "high": lambda r, n: fuzz_cells.high(r.pick(n[0], HALF)),
    "high16": lambda r, n: fuzz_cells.high(r.pick(n[0], HALF16)),
    "index": lambda r, n: fuzz_cells.index_of(r.pick(n[0])),
    "found": _found,
    "stop": lambda r, n: fuzz_cells.stopped(r.pick(n[0]), r.pick(n[-1])),
    "nested": lambda r, n: fuzz_cells.nested(r.reading("mix", "bias"), r.pick(n[0])),
    "plain": lambda r, n: fuzz_cells.plain(r.pick(n[0])),
    "random": _random,
}
WITH_VECTOR = {"leaf", "step", "normalize_input", "root", "logarithm"}
WITH_SCALAR = {"scale", "bfloat16_scalar"}
RESULTS = ("last", "all", "nested", "ends")


def make_model(program: Program) -> Callable[[Any, Instance], Any]:
    """Makes the model of a program, which returns only results."""

    def model(params: Any, instance: Instance) -> Any:
        return run(program, params, instance, extra)[0]

    extra = _extra(program)
    return model


def reads(program: Program, params: Any, instance: Instance) -> set[Any]:
    """Which parameters an instance reads."""
    with eb.cell_keys(jax.random.key(0), 0):
        return run(program, params, instance, _extra(program))[1]


def _extra(program: Program) -> Any:
    found = random_cell(program.seed, length=4)
    return eb.cell(found.function), found.inputs


def run(
    program: Program, params: Any, instance: Instance, extra: Any
) -> tuple[Any, set[Any]]:
    at_work = Run(params, instance, extra)
    for k, each in enumerate(instance.steps):
        at_work.number = k
        at_work.keep(OPERATIONS[each.operation](at_work, each.numbers))
    last = at_work.pick(-1)
    values = at_work.values
    if program.result == "last":
        result = last
    elif program.result == "all":
        result = values[VECTOR]
    elif program.result == "ends":
        result = (at_work.pick(0), {"last": last, "pair": at_work.pick(-1, PAIR)})
    else:
        result = {
            "last": last,
            "vectors": [{"v": each} for each in values[VECTOR]],
            "pairs": values.get(PAIR, []),
            "low": values.get(HALF, []),
            "counts": values.get(INDEX, []),
            "scalar": [[each] for each in values.get(SCALAR, [])],
        }
    return result, at_work.reads


def make_params(program: Program) -> Any:
    """Draws the parameters of a program."""
    rng = np.random.default_rng(program.seed)

    def draw(*shape: int) -> Array:
        return jnp.asarray(rng.standard_normal(shape) / 2, jnp.float32)

    return {
        "mix": {"a": draw(SIZE, SIZE), "b": draw(SIZE, SIZE)},
        "other": {"a": draw(SIZE, SIZE), "b": draw(SIZE, SIZE)},
        "bias": draw(SIZE),
        "table": draw(WORDS + 1, SIZE),
        "layers": [{"w": draw(SIZE, SIZE)} for _ in range(LAYERS + 1)],
        "stack": draw(LAYERS + 1, SIZE, SIZE),
        "project": {"2": draw(SIZE, 2), "4": draw(SIZE, 4)},
        "widen": draw(2, SIZE),
        "only": draw(SIZE),
        "low": draw(SIZE, SIZE).astype(jnp.bfloat16),
        "random": random_cell(program.seed, length=4).params,
        "unused": draw(2),
        "steps": jnp.int32(3),
    }


# --- random programs


def sample_program(
    rng: np.random.Generator, seed: int, without: frozenset[str]
) -> Program:
    """Draws a program.

    Args:
        rng: Source of everything except the parameters.
        seed: Seed of parameters.
        without: Operations to leave out.

    Returns:
        The program.
    """
    names = sorted({*OPERATIONS} - without)
    count = int(rng.integers(2, 7))
    drawn = rng.choice(names, min(count, len(names)), replace=False)
    operations = tuple(sorted(map(str, drawn)))
    # Few kinds of steps, for quick compilation; some must read inputs to poison.
    if not WITH_VECTOR & {*operations}:
        operations = (*operations, str(rng.choice(sorted(WITH_VECTOR - without))))
    size = int(rng.choice([1, 2, 5, 9, 40, 131], p=[0.1, 0.2, 0.3, 0.25, 0.1, 0.05]))
    # The oracle's time grows with each step of each instance.
    longest = {40: 6, 131: 3}.get(size) or int(rng.choice([3, 8, 20]))
    rare = int(rng.integers(size))
    form = str(rng.choice(["dag", "chain", "tree"]))
    instances = []
    for k in range(size):
        length = int(rng.integers(1, longest + 1))
        if rng.random() < 0.1:
            length = longest
        instances.append(_sample_instance(rng, operations, length, form, k == rare))
    result = str(rng.choice(RESULTS))
    return Program(seed, operations, result, tuple(instances), rare)


def _sample_instance(
    rng: np.random.Generator,
    operations: tuple[str, ...],
    length: int,
    form: str,
    is_rare: bool,
) -> Instance:
    steps, inputs = [], []
    for k in range(length):
        name = operations[rng.integers(len(operations))]
        count = int(rng.integers(2, 5))
        numbers = [int(each) for each in rng.integers(0, 90, count)]
        if form == "chain":
            numbers[-1] = -1
        elif form == "tree":
            numbers[0], numbers[-1] = -1, -1 - k % 2
        if is_rare and name in ("embed", "layer", "expert", "bag"):
            numbers[0] = 97
        steps.append(Step(name, tuple(numbers)))
        inputs.append(sample_input(rng, name))
    return Instance(tuple(steps), tuple(inputs))


def sample_input(rng: np.random.Generator, name: str) -> Any:
    """Draws the external input that an operation reads, if it reads one."""
    if name in WITH_VECTOR:
        return rng.uniform(0.3, 1.5, SIZE).astype(np.float32)
    if name == "bfloat16_scalar":
        return jnp.bfloat16(rng.uniform(0.3, 1.5))
    if name == "scale":
        return SCALARS[rng.integers(len(SCALARS))](rng.uniform(0.3, 1.5))
    return None
