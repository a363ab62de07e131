"""Converts trees to the decisions of a top-down generator, and decisions to trees.

A generator grows a tree in rounds. In each round it decides for all open places at
once: the label of the place, whether a child follows below it, and whether a sibling
follows after it. So a node's arity is not decided as a number: it is 0 without a first
child, otherwise 1 plus the number of its children that have a next sibling. Decisions
are ordered by round, within a round by the order of the decisions that opened their
places, the child of each before its sibling.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from edbatch.data.trees import Tree
from edbatch.errors import DataError

Place = TypeVar("Place")


class Decision(NamedTuple):
    """The decisions of a generator at one place.

    Attributes:
        label: The label of the place.
        down: Whether a first child follows below this place.
        on: Whether a sibling follows after this place.

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
        decide: Returns the decisions for the places of one round; ``on`` must be
            False in the root's decision.
        child: ``child(place, decision)`` returns the first place below ``place``.
        sibling: ``sibling(place, decision)`` returns the place after ``place``.

    Returns:
        All decisions, in the order of the rounds.

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
        tree: The tree; its labels and shape are read, not its words.

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
    """Builds a tree from decisions.

    Args:
        found: For each place the label, whether a child follows, and whether a sibling
            follows, in the order that `grow` returns.

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
