"""Checks of graphs where users hand them over: structures, not recordings."""

from typing import Any

from edbatch.arguments import list_of
from edbatch.errors import EdbatchError, shown
from edbatch.graph.structure import GraphStructure

_ONE = "the structure of a minibatch"


def check_structure(error: type[EdbatchError], name: str, value: object) -> None:
    """Checks that an argument is what scheduling looks at.

    Args:
        error: What to raise.
        name: What it is, as the subject of a sentence.
        value: Its value.

    Raises:
        EdbatchError: It is something else; of the type that was named.

    Example:
        >>> from edbatch.schedule.examples import tree
        >>> check_structure(EdbatchError, "a graph", tree("(ab)c"))
        >>> check_structure(EdbatchError, "a graph", 3)
        Traceback (most recent call last):
            ...
        edbatch.errors.EdbatchError: a graph is the structure of a minibatch, but ...
    """
    if not isinstance(value, GraphStructure):
        raise error(
            f"{name} is {_ONE}, but this is {shown(value)}, of type"
            f" {type(value).__name__}; write batched.graph(instances).structure"
        )


def structures_of(
    error: type[EdbatchError], name: str, value: Any
) -> list[GraphStructure]:
    """Lists the structures that an argument holds.

    Args:
        error: What to raise.
        name: What it is, as the subject of a sentence.
        value: Its value.

    Returns:
        Its elements.

    Raises:
        EdbatchError: It is no list, or holds something else; of the type that was
            named.
    """
    found = list_of(error, name, value, _ONE)
    for k, each in enumerate(found):
        check_structure(error, f"number {k} of {name}", each)
    return found
