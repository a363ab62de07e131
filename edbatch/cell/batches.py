"""Which batches of equal equations pay, and the order of lanes that makes them pay."""

from collections import defaultdict
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field

from jax.extend.core import JaxprEqn, Var

from edbatch.cell.cell_graph import (
    Atom,
    CellGraph,
    Node,
    find_parameter_only,
)
from edbatch.cell.equal_equations import (
    EqualEquations,
    find_equal,
    is_operation,
    num_elements,
)
from edbatch.cell.lane_order import (
    Lane,
    Orders,
    Wish,
    is_fulfilled,
    order_lanes,
)
from edbatch.cell.places import Place, find_places
from edbatch.cell.wide_product import WideProduct

_EARLY = "early"  # the source of all that depends on no input

_Lanes = tuple[JaxprEqn, ...]


def join_equal(
    graph: CellGraph, overhead: int, *, among: Collection[str]
) -> tuple[CellGraph, Orders]:
    """Joins equal equations where that pays, and orders the lanes of merged nodes.

    A batch that pays only while its operands are slices is given up if the order of
    lanes denies it that; the others are then ordered anew.

    Args:
        graph: A graph of equations and wide products.
        overhead: What an operation costs, in elements.
        among: Names of the primitives whose equations may be joined.

    Returns:
        The graph with the joined equations, and the order of each merged node's lanes.
    """
    packed, free = find_parameter_only(graph)
    early = packed | free
    candidates = find_equal(graph, early, among)
    denied: set[_Lanes] = set()
    while True:
        plan = _Plan(graph, early, overhead, denied)
        for lanes in candidates:
            if not plan.keep(lanes):
                for group in plan.by_source(lanes):
                    plan.keep(group)
        orders = order_lanes(plan.sizes, plan.fixed, plan.wishes())
        lost = {each.lanes for each in plan.batches if not plan.pays(each, orders)}
        if not lost:
            return plan.joined(), orders
        denied |= lost


@dataclass(eq=False)
class _Operands:
    """What a batch reads: lanes of blocks, and how many elements it must copy."""

    wishes: list[Wish] = field(default_factory=list)
    copied: int = 0


class _Plan:
    """The batches that are kept so far, in the order in which they run."""

    def __init__(
        self,
        graph: CellGraph,
        early: Collection[Var],
        overhead: int,
        denied: Collection[_Lanes],
    ) -> None:
        self.graph = graph
        self.early = early
        self.overhead = overhead
        self.denied = denied
        self.batches: dict[EqualEquations, _Operands] = {}
        self.sizes: dict[Hashable, int] = {}
        self.fixed: set[Hashable] = set()
        self.lane_of: dict[Var, Lane] = {}
        for block, parts in _parts(graph.nodes).items():
            if block not in early:
                self._add_parts(block, parts)
        self.wide = [node for node in graph.nodes if isinstance(node, WideProduct)]
        for node in self.wide:
            self._add_lanes(node, node.outvars)

    def _add_parts(self, block: Hashable, parts: list[tuple[Place, Var]]) -> None:
        """Counts the slices of a variable; numbers without a slice stand for gaps."""
        number, stop = 0, 0
        for place, var in sorted(parts, key=lambda part: part[0].start):
            if place.start < stop:
                return  # slices that overlap
            number += place.start > stop
            stop = place.stop
            self.lane_of[var] = block, number
            number += 1
        self.sizes[block] = number
        self.fixed.add(block)

    def _add_lanes(self, block: Hashable, outvars: Sequence[Var]) -> None:
        self.sizes[block] = len(outvars)
        self.lane_of.update((var, (block, k)) for k, var in enumerate(outvars))

    def keep(self, lanes: Sequence[JaxprEqn]) -> bool:
        """Keeps a batch if it pays, as long as each wish of it is granted."""
        if len(lanes) < 2 or tuple(lanes) in self.denied:
            return False
        batch = EqualEquations(tuple(lanes), self.graph.traced)
        operands = _Operands()
        for slot in zip(*(lane.invars for lane in lanes), strict=True):
            source = {self._source(atom) for atom in slot}
            if source == {_EARLY} or all(atom is slot[0] for atom in slot):
                continue  # stacked before any input is known, or shared by all lanes
            elements = sum(map(num_elements, slot))
            readers = tuple((batch, k) for k in range(len(slot)))
            wish = self._wish(slot, readers, elements)
            if wish is None:
                operands.copied += elements
            else:
                operands.wishes.append(wish)
        self.batches[batch] = operands
        if not self.pays(batch, None):
            del self.batches[batch]
            return False
        self.sizes[batch] = len(lanes)
        if len(lanes[0].outvars) == 1:
            self._add_lanes(batch, batch.outvars)
        return True

    def by_source(self, lanes: Sequence[JaxprEqn]) -> list[list[JaxprEqn]]:
        """Divides a batch so that each slot of a part reads one block."""
        parts: dict[Hashable, list[JaxprEqn]] = defaultdict(list)
        for lane in lanes:
            parts[tuple(map(self._source, lane.invars))].append(lane)
        return list(parts.values())

    def _source(self, atom: Atom) -> Hashable:
        """The block that a variable is a lane of; itself if it is none."""
        if not isinstance(atom, Var) or atom in self.early:
            return _EARLY
        return self.lane_of[atom][0] if atom in self.lane_of else atom

    def _wish(
        self, atoms: Sequence[Atom], readers: tuple[Lane, ...], elements: int
    ) -> Wish | None:
        """The wish for some variables as one slice, if they can ever be one."""
        lanes = tuple(
            self.lane_of[atom]
            for atom in atoms
            if isinstance(atom, Var) and atom in self.lane_of
        )
        if len(lanes) < len(atoms) or len({block for block, _ in lanes}) != 1:
            return None
        return Wish(lanes, readers, elements)

    def wishes(self) -> list[Wish]:
        """Returns the wishes of all batches and of the inputs of wide products."""
        found = [wish for each in self.batches.values() for wish in each.wishes]
        for node in self.wide:
            atoms = [product.x for product in node.inputs]
            elements = sum(map(num_elements, atoms))
            if len(atoms) > 1 and (wish := self._wish(atoms, (), elements)):
                found.append(wish)
        return found

    def pays(self, batch: EqualEquations, orders: Orders | None) -> bool:
        """Says whether a batch pays.

        Args:
            batch: The batch.
            orders: The orders of lanes; None stands for orders that grant each wish.

        Returns:
            Whether it saves more than it copies; an elementwise batch saves nothing,
            and may copy nothing.
        """
        operands = self.batches[batch]
        copied = operands.copied
        if orders is not None:
            refused = [x for x in operands.wishes if not is_fulfilled(x, orders)]
            copied += sum(wish.elements for wish in refused)
        if is_operation(batch.lanes[0]):
            return copied < self.overhead * (len(batch.lanes) - 1)
        return copied == 0 and bool(operands.wishes)

    def joined(self) -> CellGraph:
        """Returns the graph with the batches that are kept."""
        inside = {id(lane) for batch in self.batches for lane in batch.lanes}
        others = [node for node in self.graph.nodes if id(node) not in inside]
        return self.graph.with_nodes([*self.batches, *others])


def _parts(nodes: Sequence[Node]) -> dict[Hashable, list[tuple[Place, Var]]]:
    """The slices that equations cut each variable into, if along one dimension."""
    places: dict[Var, Place] = {}
    found: dict[Hashable, list[tuple[Place, Var]]] = defaultdict(list)
    for node in nodes:
        if isinstance(node, JaxprEqn):
            places.update(find_places(node, places))
    for var, place in places.items():
        found[place.block].append((place, var))
    for block, parts in found.items():
        # A slice of length one stands beside the element that it is taken for.
        elements = [part for part in parts if part[0].is_element]
        found[block] = elements or parts
    return {
        block: parts
        for block, parts in found.items()
        if len({place.dim for place, _ in parts}) == 1
    }
