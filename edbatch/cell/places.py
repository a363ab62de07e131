"""Places of variables in larger ones, so that one slice can read several."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from jax import lax

from edbatch.cell.emitter import Emitter
from edbatch.cell.jaxpr import Atom, JaxprEqn, Var, name_of, read_cuts, shape_of


@dataclass(frozen=True)
class Place:
    """A variable that is a slice of a larger one, along one dimension.

    Attributes:
        block: The larger variable.
        dim: The dimension.
        start: First element of the slice.
        stop: End of the slice.
        is_element: Whether the variable is one element and lacks the dimension.
    """

    block: Var
    dim: int
    start: int
    stop: int
    is_element: bool = False


Places = Mapping[Var, Place]


def find_places(eqn: JaxprEqn, places: Places) -> dict[Var, Place]:
    """Finds the places of an equation's results in larger variables.

    Args:
        eqn: An equation; only slices, splits and the removal of a dimension of length
            one have results with a place.
        places: Places of the variables that it reads.

    Returns:
        The place of each result that has one.
    """
    if not eqn.invars or not isinstance(eqn.invars[0], Var):
        return {}
    block = eqn.invars[0]
    if cuts := read_cuts(eqn):
        found = zip(eqn.outvars, cuts, strict=True)
        return {var: Place(block, *cut) for var, cut in found}
    if name_of(eqn) in ("squeeze", "reshape") and block in places:
        [result] = eqn.outvars
        place = places[block]
        shape = shape_of(block)
        rest = (*shape[: place.dim], *shape[place.dim + 1 :])
        is_one = not place.is_element and place.stop - place.start == 1
        if is_one and shape_of(result) == rest:
            return {result: replace(place, is_element=True)}
    return {}


def concatenated(
    emitter: Emitter, places: Places, atoms: Sequence[Atom], dim: int
) -> Atom:
    """Reads variables concatenated: as one slice of a block, otherwise as a copy.

    Args:
        emitter: Collects the equations.
        places: Places of variables.
        atoms: The variables to concatenate, at least one.
        dim: The dimension along which to concatenate.

    Returns:
        The concatenation.
    """
    if len(atoms) == 1:
        return atoms[0]
    run = _as_run(places, atoms)
    if run is not None and run.is_element and run.dim == dim == 0:
        rows = read_place(emitter, run)
        shape = shape_of(rows)
        return emitter.emit(lambda x: x.reshape(shape[0] * shape[1], *shape[2:]), rows)
    if run is not None and not run.is_element and run.dim == dim:
        return read_place(emitter, run)
    return emitter.emit(lambda *arrays: lax.concatenate(arrays, dim), *atoms)


def _as_run(places: Places, atoms: Sequence[Atom]) -> Place | None:
    """The one slice that contains some variables in sequence, if there is one."""
    found = [places[each] for each in atoms if isinstance(each, Var) and each in places]
    if len(found) < len(atoms):
        return None
    [first, *_], [*_, last] = found, found
    for one, two in pairwise(found):
        if replace(one, start=one.stop, stop=two.stop) != two:
            return None
    return Place(first.block, first.dim, first.start, last.stop, first.is_element)


def read_place(emitter: Emitter, place: Place) -> Var:
    """Reads a slice of a block; keeps the dimension, even for a single element.

    Args:
        emitter: Collects the equation, unless the slice is the whole block.
        place: The slice.

    Returns:
        The slice.
    """
    if (place.start, place.stop) == (0, shape_of(place.block)[place.dim]):
        return place.block
    return emitter.emit(
        lambda x: lax.slice_in_dim(x, place.start, place.stop, axis=place.dim),
        place.block,
    )
