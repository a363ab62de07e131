"""Reads the parameters of loops and conditionals, including the functions they run."""

from typing import NamedTuple

from edbatch.cell.jaxpr.function_body import Body, body_of
from edbatch.cell.jaxpr.internals import JaxprEqn
from edbatch.cell.primitives import COND, SCAN, WHILE


class Scan(NamedTuple):
    """A loop over arrays: its inputs are constants, carried values and the arrays."""

    num_consts: int
    num_carried: int
    length: int
    body: Body
    reverse: bool


def read_scan(eqn: JaxprEqn) -> Scan | None:
    """Reads an equation as a `jax.lax.scan`; None for other equations."""
    if eqn.primitive.name != SCAN:
        return None
    if "ft_in" in eqn.params:  # since JAX 0.12
        consts, carried, _ = map(len, eqn.params["ft_in"].unpack())
    else:
        consts, carried = eqn.params["num_consts"], eqn.params["num_carry"]
    body, reverse = body_of(eqn.params["jaxpr"]), eqn.params["reverse"]
    return Scan(consts, carried, eqn.params["length"], body, reverse)


class While(NamedTuple):
    """A loop: its inputs are constants of condition and body, and carried values."""

    condition_consts: int
    body_consts: int
    condition: Body
    body: Body


def read_while(eqn: JaxprEqn) -> While | None:
    """Reads an equation as a `jax.lax.while_loop`; None for other equations."""
    if eqn.primitive.name != WHILE:
        return None
    return While(
        eqn.params["cond_nconsts"],
        eqn.params["body_nconsts"],
        body_of(eqn.params["cond_jaxpr"]),
        body_of(eqn.params["body_jaxpr"]),
    )


def read_branches(eqn: JaxprEqn) -> list[Body] | None:
    """Reads an equation as a `jax.lax.switch`; None for other equations."""
    if eqn.primitive.name != COND:
        return None
    return [body_of(each) for each in eqn.params["branches"]]
