"""A tree as the decisions of a top-down generator, and the tree of such decisions.

A generator grows a tree in rounds. In each it decides for all open places at once: the
label there, whether a child follows below, and whether a sibling follows beside it. So
a node's arity is the number of times that a sibling was wanted. The order of decisions
is that of rounds, and within a round that of the places whose decisions opened them,
the child of each before its sibling.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from edbatch.data.trees import Tree
from edbatch.errors import DataError

Place = TypeVar("Place")


class Decision(NamedTuple):
    """The decisions of a generator at one place.

    Attributes:
        label: The label there.
        down: Whether a child follows, the first one below this place.
        on: Whether a sibling follows, behind this place.

    Example:
        >>> Decision(label="NP", down=True, on=False).label
        'NP'
    """

    label: Any
    down: bool
    on: bool


def grow(
    root: Place,
    decide: Callable[[list[Place]], Iterable[Decision]],
    child: Callable[[Place, Decision], Place],
    sibling: Callable[[Place, Decision], Place],
) -> list[Decision]:
    """Grows a tree top-down.

    Args:
        root: The first place.
        decide: Decides for the places of one round; none may want a sibling of the
            root.
        child: Gives the first place below one, from it and its decision.
        sibling: Gives the place behind one.

    Returns:
        All decisions, in their order.

    Example:
        >>> found = grow(
        ...     3,
        ...     decide=lambda places: [Decision(k, k > 1, False) for k in places],
        ...     child=lambda place, _: place - 1,
        ...     sibling=lambda place, _: place,
        ... )
        >>> [each.label for each in found]
        [3, 2, 1]
    """
    found: list[Decision] = []
    places = [root]
    while places:
        decided = list(decide(places))
        found += decided
        opened: list[Place] = []
        for place, each in zip(places, decided, strict=True):
            if each.down:
                opened.append(child(place, each))
            if each.on:
                opened.append(sibling(place, each))
        places = opened
    return found


def decisions(tree: Tree) -> list[Decision]:
    """Returns the decisions that grow a tree.

    Args:
        tree: The tree, of which the labels are read.

    Returns:
        One decision per node.

    Example:
        >>> tree = Tree("S", children=[Tree("A", children=[Tree("C")]), Tree("B")])
        >>> [each.label for each in decisions(tree)]
        ['S', 'A', 'C', 'B']
        >>> tree_from_decisions(decisions(tree)) == tree
        True
    """

    def decide(places: list[tuple[Sequence[Tree], int]]) -> Iterable[Decision]:
        for siblings, k in places:
            node = siblings[k]
            yield Decision(node.label, bool(node.children), k + 1 < len(siblings))

    root: tuple[Sequence[Tree], int] = ((tree,), 0)
    return grow(
        root,
        decide,
        child=lambda place, _: (place[0][place[1]].children, 0),
        sibling=lambda place, _: (place[0], place[1] + 1),
    )


def tree_from_decisions(found: Iterable[tuple[Any, Any, Any]]) -> Tree:
    """Builds the tree that decisions grow.

    Args:
        found: The label, whether a child follows, and whether a sibling does, for each
            place, in the order of `grow`.

    Returns:
        The tree, without words.

    Raises:
        DataError: There are too few or too many decisions, or the root has a sibling.

    Example:
        >>> print(tree_from_decisions([("S", True, False), ("A", False, False)]))
        (S (A))
    """
    rest = iter(found)
    labels: list[Any] = []
    children: list[list[int]] = []  # by node
    family: list[int] = []

    def decide(places: list[list[int]]) -> Iterable[Decision]:
        for siblings in places:
            each = next(rest, None)
            if each is None:
                raise _mismatch(f"{len(labels)} decisions for more places than that")
            decision = Decision(each[0], bool(each[1]), bool(each[2]))
            if siblings is family and decision.on:
                raise _mismatch("a sibling of the root")
            siblings.append(len(labels))
            labels.append(decision.label)
            children.append([])
            yield decision

    grow(
        family,
        decide,
        child=lambda siblings, _: children[siblings[-1]],
        sibling=lambda siblings, _: siblings,
    )
    if next(rest, None) is not None:
        raise _mismatch(f"more decisions than the {len(labels)} places")
    built: list[Tree | None] = [None] * len(labels)
    for node in reversed(range(len(labels))):  # children are decided after parents
        parts = tuple(each for k in children[node] if (each := built[k]) is not None)
        built[node] = Tree(labels[node], None, parts)
    [root] = built[:1]
    assert root is not None
    return root


def _mismatch(what: str) -> DataError:
    return DataError(
        f"a tree has one decision for each place that was opened; found {what}; "
        "usually a list that was cut or put in another order; pass all, as grow "
        "returns them"
    )
