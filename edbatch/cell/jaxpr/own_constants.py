"""Copies of the NumPy arrays that a traced function closes over.

JAX keeps references to these arrays and reads them when the function is lowered. Here
one trace is lowered often: for each bucket, for each tier, in other threads. If the
owner of an array changed it in place meanwhile, these programs would compute different
results, and stored programs would be kept under the key of the old values.
"""

import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np

from edbatch.cell.jaxpr.equation import Atom
from edbatch.cell.jaxpr.internals import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from edbatch.graph.host_arrays import same_bytes

# Copies in use, by memory, shape and dtype of the original arrays: cells that read the
# same large table share its copy.
_COPIES: "weakref.WeakValueDictionary[Any, np.ndarray]" = weakref.WeakValueDictionary()
_OWN: "weakref.WeakValueDictionary[int, np.ndarray]" = weakref.WeakValueDictionary()


def with_own_constants(jaxpr: Any) -> Any:
    """Returns a traced function whose constants cannot be changed.

    Args:
        jaxpr: As `jax.make_jaxpr` returns it.

    Returns:
        The same function with copies of the NumPy arrays, including those of functions
        that it calls. Arrays read by differentiation rules and callbacks are not
        copied.
    """
    return _Copying().jaxpr(jaxpr)


class _Copying:
    """Copies a function with its constants; jaxprs without constants are reused."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Any, Any]] = {}  # by id of the original, kept alive

    def jaxpr(self, jaxpr: Any) -> Any:
        known = self._made.get(id(jaxpr))
        if known is None:
            known = self._made[id(jaxpr)] = jaxpr, self._of_copies(jaxpr)
        return known[1]

    def _of_copies(self, jaxpr: Any) -> Any:
        opened = getattr(jaxpr, "jaxpr", jaxpr)  # one class since JAX 0.12
        constants = getattr(jaxpr, "consts", ())
        own = [self.array(each) for each in constants]
        equations = [self.equation(each) for each in opened.eqns]
        outputs = [self.atom(each) for each in opened.outvars]
        is_same = _are_same(equations, opened.eqns) and _are_same(
            outputs, opened.outvars
        )
        if is_same and _are_same(own, constants):
            return jaxpr
        if not is_same:
            opened = opened.replace(eqns=equations, outvars=outputs)
        return ClosedJaxpr(opened, own) if isinstance(jaxpr, ClosedJaxpr) else opened

    def equation(self, eqn: JaxprEqn) -> JaxprEqn:
        inputs = [self.atom(each) for each in eqn.invars]
        params = {name: self.parameter(each) for name, each in eqn.params.items()}
        if not _are_same(inputs, eqn.invars):
            eqn = eqn.replace(invars=inputs)
        if not _are_same(params.values(), eqn.params.values()):
            eqn = eqn.replace(params=params)
        return eqn

    def parameter(self, value: Any) -> Any:
        if isinstance(value, ClosedJaxpr | Jaxpr):
            return self.jaxpr(value)
        if type(value) in (tuple, list):
            own = [self.parameter(each) for each in value]
            return value if _are_same(own, value) else type(value)(own)
        return value

    def atom(self, atom: Atom) -> Atom:
        if not isinstance(atom, Literal):
            return atom
        own = self.array(atom.val)
        return atom if own is atom.val else Literal(own, atom.aval)

    def array(self, value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        known = self._made.get(id(value))
        if known is None:
            known = self._made[id(value)] = value, _copy_of(value)
        return known[1]


def _copy_of(array: np.ndarray) -> np.ndarray:
    """Returns a read-only copy; reuses a copy in use if its content is the same."""
    if not array.ndim:  # JAX's literals
        return array.copy()
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    if _OWN.get(id(owner)) is owner:  # of a cell made from traced cells
        return array
    place, is_weak = array.__array_interface__, getattr(array, "weak_type", False)
    key = place["data"][0], array.shape, array.strides, array.dtype, is_weak
    known = _COPIES.get(key)
    if known is not None and type(known) is type(array) and same_bytes(known, array):
        return known
    copy = array.copy(order="C")
    copy.flags.writeable = False
    _COPIES[key] = _OWN[id(copy)] = copy
    return copy


def _are_same(own: Iterable[Any], others: Iterable[Any]) -> bool:
    return all(one is other for one, other in zip(own, others, strict=True))
