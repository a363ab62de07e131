"""Cases of the fuzzer in `tests/fuzz`: random programs and configurations."""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import fuzz_models
import numpy as np
from fuzz_models import Instance, Program

import edbatch as eb

POISONS = {
    "nan": np.nan,
    "inf": np.inf,
    "-inf": -np.inf,
    "1e38": 1e38,
    "-1e38": -1e38,
    "zero": 0.0,
}


class RandomPolicy:
    """Runs a random part of the ready nodes of one type."""

    name = "random"

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def schedule(self, structure: Any) -> eb.Schedule:
        rng = np.random.default_rng(self.seed)
        start, consumers, waiting = structure.consumers
        waiting = waiting.copy()
        ready = [*np.flatnonzero(waiting == 0)]
        order, starts, kinds = [], [0], []
        while ready:
            kind = structure.node_type[ready[rng.integers(len(ready))]]
            batch = [
                node
                for node in ready
                if structure.node_type[node] == kind and rng.random() < 0.8
            ]
            if not batch:
                continue
            rng.shuffle(batch)
            taken = {*batch}
            ready = [node for node in ready if node not in taken]
            for node in batch:
                for reader in consumers[start[node] : start[node + 1]]:
                    waiting[reader] -= 1
                    if not waiting[reader]:
                        ready.append(reader)
            order += batch
            starts.append(len(order))
            kinds.append(kind)
        return eb.Schedule(
            np.array(order, np.int32),
            np.array(starts, np.int32),
            np.array(kinds, np.int32),
            self.name,
        )


@dataclass(frozen=True)
class Configuration:
    """How a program is batched, with the defaults of `eb.batch`."""

    policy: str = "greedy"
    layout: str = "schedule"
    slices: str = "auto"
    packing: str = "auto"
    hoisting: str = "auto"
    remat: str = "auto"
    widths: tuple[int, ...] | None = None
    cached: bool = False
    recorded: bool = False
    loaded: bool = False
    reuse: str = "never"

    def batch(self, model: Callable[..., Any], params: Any) -> eb.Batched:
        compiler = eb.Compiler(
            slices=self.slices,
            packing=self.packing,
            hoisting=self.hoisting,
            remat=self.remat,
        )
        policy = RandomPolicy(7) if self.policy == "random" else self.policy
        return eb.batch(
            model,
            policy,
            params=params,
            sizes=None if self.widths is None else eb.Sizes(widths=self.widths),
            planner=eb.Planner(layout=self.layout, reuse=self.reuse),
            compiler=compiler,
            cache_bytes=2**20 if self.cached else 0,
        )

    def changed(self) -> dict[str, Any]:
        """The fields that differ from the defaults."""
        return {
            each.name: getattr(self, each.name)
            for each in dataclasses.fields(self)
            if getattr(self, each.name) != each.default
        }

    def __str__(self) -> str:
        inner = ", ".join(f"{name}={value!r}" for name, value in self.changed().items())
        return f"Configuration({inner})"


def sample_configuration(rng: np.random.Generator) -> Configuration:
    """Draws a configuration, with few widths because each is a loop to compile."""
    widths = [(4,), (8,), (2, 8), (1,), (3, 5), (4, 32), None]
    return Configuration(
        policy=str(rng.choice(["greedy", "depth", "agenda", "random"])),
        layout=str(rng.choice(["schedule", "aligned"])),
        slices="auto" if rng.random() < 0.8 else "never",
        packing="auto" if rng.random() < 0.7 else "never",
        hoisting=str(rng.choice(["auto", "always", "never"])),
        remat="always" if rng.random() < 0.3 else "auto",
        widths=widths[rng.choice(len(widths), p=[0.3, 0.2, 0.15, 0.1, 0.1, 0.1, 0.05])],
        cached=bool(rng.random() < 0.3),
        recorded=bool(rng.random() < 0.3),
        loaded=bool(rng.random() < 0.1),
        reuse="always" if rng.random() < 0.15 else "never",
    )


@dataclass(frozen=True)
class Case:
    """A program, how it is batched, and how an instance is poisoned.

    Attributes:
        program: The program.
        configuration: The configuration.
        poisons: Names of `POISONS`, each tried on several inputs, and on rows of
            parameters that only the rare instance reads.
    """

    program: Program
    configuration: Configuration
    poisons: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.configuration}, poisons {self.poisons}\n{self.program}"

    def simpler(self) -> Iterator["Case"]:
        """Smaller cases, which may fail in the same way."""
        program = self.program
        count = len(program.instances)
        for size in sorted({1, 2, count // 2, count - 1} - {0, count}):
            first = min(program.rare, count - size)
            yield self._with(
                instances=program.instances[first : first + size],
                rare=program.rare - first,
            )
        for name in program.operations:
            rest = tuple(each for each in program.operations if each != name)
            kept = tuple(_without(each, name) for each in program.instances)
            if rest and all(each.steps for each in kept):
                yield self._with(operations=rest, instances=kept)
        halves = tuple(
            Instance(
                each.steps[: (len(each.steps) + 1) // 2],
                each.inputs[: (len(each.inputs) + 1) // 2],
            )
            for each in program.instances
        )
        if halves != program.instances:
            yield self._with(instances=halves)
        if program.result != "last":
            yield self._with(result="last")
        for name in self.configuration.changed():
            default = getattr(Configuration(), name)
            simple = replace(self.configuration, **{name: default})
            yield replace(self, configuration=simple)

    def _with(self, **changes: Any) -> "Case":
        return replace(self, program=replace(self.program, **changes))


def _without(instance: Instance, operation: str) -> Instance:
    kept = [k for k, each in enumerate(instance.steps) if each.operation != operation]
    return Instance(
        tuple(instance.steps[k] for k in kept), tuple(instance.inputs[k] for k in kept)
    )


def sample_case(seed: int, number: int, without: frozenset[str] = frozenset()) -> Case:
    """Draws a case, always the same one for the same arguments."""
    rng = np.random.default_rng((seed, number))
    program = fuzz_models.sample_program(rng, int(rng.integers(2**31)), without)
    poisons = tuple(str(each) for each in rng.permutation([*POISONS])[:3])
    configuration = sample_configuration(rng)
    return Case(program, configuration, () if "isolation" in without else poisons)
