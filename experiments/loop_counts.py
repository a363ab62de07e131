"""Runs a jaxpr equation by equation, and counts what its loops do."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from edbatch.cell.jaxpr import as_function, variables
from edbatch.target import CPU


@dataclass
class Iterations:
    """How often a loop or conditional of a jaxpr ran.

    Attributes:
        kind: ``"while"``, ``"scan"`` or ``"cond"``.
        runs: How often it was reached.
        turns: Iterations of a loop, all runs together.
        branches: How often each branch ran.
        inner: The loops and conditionals inside, per part, in order.
    """

    kind: str
    runs: int = 0
    turns: int = 0
    branches: list[int] = field(default_factory=list)
    inner: list[list["Iterations"]] = field(default_factory=list)


def run_counted(
    function: Callable[..., Any], *arguments: Any
) -> tuple[Any, list[Iterations]]:
    """Runs a function equation by equation, and counts what its loops do.

    Args:
        function: The function.
        *arguments: Its arguments.

    Returns:
        The leaves of its result, and the outermost loops and conditionals in order.
    """
    closed = jax.make_jaxpr(function)(*arguments)
    counter = _Counter()
    leaves = jax.tree.leaves(arguments)
    own = counter.places(closed.jaxpr)
    return counter.run(closed.jaxpr, closed.consts, leaves, own), own


class _Counter:
    """Interprets jaxprs."""

    def __init__(self) -> None:
        self._plans: dict[int, list[tuple[Any, Any]]] = {}

    def places(self, jaxpr: Any) -> list[Iterations]:
        """The loops and conditionals of a jaxpr, those of called functions too."""
        found = []
        for eqn in jaxpr.eqns:
            name = eqn.primitive.name
            if name == "while":
                bodies = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
            elif name == "cond":
                bodies = eqn.params["branches"]
            elif name == "scan":
                bodies = (eqn.params["jaxpr"],)
            else:
                for called in _called(eqn):
                    found += self.places(called.jaxpr)
                continue
            inner = [self.places(each.jaxpr) for each in bodies]
            found.append(Iterations(name, branches=[0] * len(bodies), inner=inner))
        return found

    def run(
        self, jaxpr: Any, consts: Any, arguments: Any, places: list[Iterations]
    ) -> list[Any]:
        """Runs a jaxpr, whose loops are counted in `places`."""
        known = dict(zip(jaxpr.constvars, consts, strict=True))
        known.update(zip(jaxpr.invars, arguments, strict=True))

        def read(atom: Any) -> Any:
            return atom.val if hasattr(atom, "val") else known[atom]

        rest = iter(places)
        for eqns, function in self._plan(jaxpr):
            if function is not None:
                inputs, outputs, call = function
                found = call(*(known[each] for each in inputs))
            else:
                outputs = eqns[0].outvars
                found = self._equation(eqns[0], [*map(read, eqns[0].invars)], rest)
            known.update(zip(outputs, found, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _plan(self, jaxpr: Any) -> list[tuple[Any, Any]]:
        """The equations one by one that hold loops, between them compiled functions."""
        if id(jaxpr) in self._plans:
            return self._plans[id(jaxpr)]
        groups: list[list[Any]] = []
        plain = False
        for eqn in jaxpr.eqns:
            is_plain = not self._holds_loops(eqn)
            if is_plain and plain:
                groups[-1].append(eqn)
            else:
                groups.append([eqn])
            plain = is_plain
        used = set(variables(jaxpr.outvars))
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
                options = dict(CPU.coarse_options)
                call = jax.jit(function, compiler_options=options)
                plan.append((eqns, (inputs, outputs, call)))
            used.update(inputs)
        self._plans[id(jaxpr)] = plan[::-1]
        return self._plans[id(jaxpr)]

    def _holds_loops(self, eqn: Any) -> bool:
        return eqn.primitive.name in ("while", "cond", "scan") or any(
            self.places(called.jaxpr) for called in _called(eqn)
        )

    def _equation(self, eqn: Any, inputs: Any, rest: Iterator[Iterations]) -> Any:
        """Runs an equation that holds loops."""
        name = eqn.primitive.name
        if name == "while":
            return self._while(eqn, inputs, next(rest))
        if name == "cond":
            return self._cond(eqn, inputs, next(rest))
        if name == "scan":
            return self._scan(eqn, inputs, next(rest))
        [called] = _called(eqn)
        own = [next(rest) for _ in self.places(called.jaxpr)]
        return self.run(called.jaxpr, called.consts, inputs, own)

    def _while(self, eqn: Any, inputs: Any, place: Iterations) -> Any:
        cond, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
        n_cond, n_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        cond_consts, body_consts = inputs[:n_cond], inputs[n_cond : n_cond + n_body]
        carry = inputs[n_cond + n_body :]
        place.runs += 1
        while True:
            [more] = self.run(
                cond.jaxpr, cond.consts, [*cond_consts, *carry], place.inner[0]
            )
            if not more:
                return carry
            place.turns += 1
            carry = self.run(
                body.jaxpr, body.consts, [*body_consts, *carry], place.inner[1]
            )

    def _cond(self, eqn: Any, inputs: Any, place: Iterations) -> Any:
        branches = eqn.params["branches"]
        chosen = int(np.clip(int(inputs[0]), 0, len(branches) - 1))
        place.runs += 1
        place.branches[chosen] += 1
        body = branches[chosen]
        return self.run(body.jaxpr, body.consts, inputs[1:], place.inner[chosen])

    def _scan(self, eqn: Any, inputs: Any, place: Iterations) -> Any:
        body, length = eqn.params["jaxpr"], eqn.params["length"]
        n_consts, n_carry = eqn.params["num_consts"], eqn.params["num_carry"]
        consts, carry = inputs[:n_consts], inputs[n_consts : n_consts + n_carry]
        stacked = inputs[n_consts + n_carry :]
        place.runs += 1
        place.turns += length
        order = range(length)
        collected = []
        for k in reversed(order) if eqn.params["reverse"] else order:
            own = [each[k] for each in stacked]
            found = self.run(
                body.jaxpr, body.consts, [*consts, *carry, *own], place.inner[0]
            )
            carry, rows = found[:n_carry], found[n_carry:]
            collected.append(rows)
        if eqn.params["reverse"]:
            collected.reverse()
        return [*carry, *(jnp.stack(each) for each in zip(*collected, strict=True))]


def _called(eqn: Any) -> list[Any]:
    """The functions that an equation calls, as closed jaxprs."""
    params = [eqn.params.get(name) for name in ("jaxpr", "call_jaxpr", "fun_jaxpr")]
    return [each for each in params if hasattr(each, "consts")]
