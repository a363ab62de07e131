"""Runs a jaxpr equation by equation and counts the iterations of its loops."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from edbatch.cell.jaxpr import (
    Body,
    Scan,
    While,
    as_function,
    body_of,
    inner_bodies,
    name_of,
    read_branches,
    read_scan,
    read_while,
    variables,
)
from edbatch.compilation.tier import known_options
from edbatch.target import CPU


@dataclass
class Iterations:
    """How often a loop or conditional of a jaxpr ran.

    Attributes:
        kind: ``"while"``, ``"scan"`` or ``"cond"``.
        runs: How often it was reached.
        iterations: Total iterations of a loop, over all runs.
        branches: How often each branch ran.
        inner: The loops and conditionals inside each part, in order.
    """

    kind: str
    runs: int = 0
    iterations: int = 0
    branches: list[int] = field(default_factory=list)
    inner: list[list["Iterations"]] = field(default_factory=list)


def run_counted(
    function: Callable[..., Any], *arguments: Any
) -> tuple[Any, list[Iterations]]:
    """Runs a function equation by equation and counts the iterations of its loops.

    Args:
        function: The function.
        *arguments: Its arguments.

    Returns:
        The leaves of its result, and the outermost loops and conditionals in order.
    """
    body = body_of(jax.make_jaxpr(function)(*arguments))
    counter = _Counter()
    own = counter.places(body)
    return counter.run(body, jax.tree.leaves(arguments), own), own


class _Counter:
    """Interprets jaxprs."""

    def __init__(self) -> None:
        self._plans: dict[int, tuple[Any, list[tuple[Any, Any]]]] = {}

    def places(self, body: Body) -> list[Iterations]:
        """Returns a function's loops and conditionals, inner functions included."""
        found = []
        for eqn in body.equations:
            parts = _parts(eqn)
            if parts is None:
                for called in inner_bodies(eqn):
                    found += self.places(called)
                continue
            inner = [self.places(each) for each in parts]
            own = Iterations(name_of(eqn), branches=[0] * len(parts), inner=inner)
            found.append(own)
        return found

    def run(self, body: Body, arguments: Any, places: list[Iterations]) -> list[Any]:
        """Runs a function and counts its loops in `places`."""
        known = dict(body.constants)
        known.update(zip(body.inputs, arguments, strict=True))

        def read(atom: Any) -> Any:
            return atom.val if hasattr(atom, "val") else known[atom]

        rest = iter(places)
        for eqns, function in self._plan(body):
            if function is not None:
                inputs, outputs, call = function
                found = call(*(known[each] for each in inputs))
            else:
                outputs = eqns[0].outvars
                found = self._equation(eqns[0], [*map(read, eqns[0].invars)], rest)
            known.update(zip(outputs, found, strict=True))
        return [read(atom) for atom in body.outputs]

    def _plan(self, body: Body) -> list[tuple[Any, Any]]:
        """Returns equations with loops one by one, the others as compiled functions."""
        key = id(body.equations)
        if key in self._plans:
            return self._plans[key][1]
        groups: list[list[Any]] = []
        plain = False
        for eqn in body.equations:
            is_plain = not self._holds_loops(eqn)
            if is_plain and plain:
                groups[-1].append(eqn)
            else:
                groups.append([eqn])
            plain = is_plain
        used = set(variables(body.outputs))
        plan: list[tuple[Any, Any]] = []
        for eqns in reversed(groups):
            inputs = variables([atom for eqn in eqns for atom in eqn.invars])
            if self._holds_loops(eqns[0]):
                plan.append((eqns, None))
            else:
                made = [var for eqn in eqns for var in eqn.outvars]
                outputs = [var for var in made if var in used]
                inputs = [var for var in inputs if var not in made]
                function = as_function(inputs, eqns, outputs)
                options = known_options(CPU.coarse_options)
                call = jax.jit(function, compiler_options=options)
                plan.append((eqns, (inputs, outputs, call)))
            used.update(inputs)
        self._plans[key] = body.equations, plan[::-1]  # equations: keeps their id valid
        return plan[::-1]

    def _holds_loops(self, eqn: Any) -> bool:
        return _parts(eqn) is not None or any(map(self.places, inner_bodies(eqn)))

    def _equation(self, eqn: Any, inputs: Any, rest: Iterator[Iterations]) -> Any:
        """Runs an equation that contains loops."""
        if (loop := read_while(eqn)) is not None:
            return self._while(loop, inputs, next(rest))
        if (branches := read_branches(eqn)) is not None:
            return self._switch(branches, inputs, next(rest))
        if (scan := read_scan(eqn)) is not None:
            return self._scan(scan, inputs, next(rest))
        [called] = inner_bodies(eqn)
        own = [next(rest) for _ in self.places(called)]
        return self.run(called, inputs, own)

    def _while(self, loop: While, inputs: Any, place: Iterations) -> Any:
        first = loop.condition_consts
        last = first + loop.body_consts
        condition_consts, body_consts = inputs[:first], inputs[first:last]
        carry = inputs[last:]
        place.runs += 1
        while True:
            own = [*condition_consts, *carry]
            [more] = self.run(loop.condition, own, place.inner[0])
            if not more:
                return carry
            place.iterations += 1
            carry = self.run(loop.body, [*body_consts, *carry], place.inner[1])

    def _switch(self, branches: list[Body], inputs: Any, place: Iterations) -> Any:
        chosen = int(np.clip(int(inputs[0]), 0, len(branches) - 1))
        place.runs += 1
        place.branches[chosen] += 1
        return self.run(branches[chosen], inputs[1:], place.inner[chosen])

    def _scan(self, scan: Scan, inputs: Any, place: Iterations) -> Any:
        first = scan.num_consts
        last = first + scan.num_carried
        consts, carry, stacked = inputs[:first], inputs[first:last], inputs[last:]
        place.runs += 1
        place.iterations += scan.length
        order = range(scan.length)
        collected = []
        for k in reversed(order) if scan.reverse else order:
            own = [each[k] for each in stacked]
            found = self.run(scan.body, [*consts, *carry, *own], place.inner[0])
            carry, rows = found[: scan.num_carried], found[scan.num_carried :]
            collected.append(rows)
        if scan.reverse:
            collected.reverse()
        return [*carry, *(jnp.stack(each) for each in zip(*collected, strict=True))]


def _parts(eqn: Any) -> list[Body] | None:
    """Returns the parts of a loop or conditional, counted separately, else None."""
    if (loop := read_while(eqn)) is not None:
        return [loop.condition, loop.body]
    if (scan := read_scan(eqn)) is not None:
        return [scan.body]
    return read_branches(eqn)
