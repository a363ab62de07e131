"""Checks that arguments are graph structures, not recordings."""

from typing import Any

from edbatch.arguments import list_of
from edbatch.errors import EdbatchError, shown
from edbatch.graph.structure import GraphStructure

_ONE = "the structure of a minibatch"


def check_structure(error: type[EdbatchError], name: str, value: object) -> None:
    """Checks that an argument is a `GraphStructure`.

    Args:
        error: Type of the error to raise.
        name: Description of the argument, as the subject of a sentence.
        value: The argument's value.

    Raises:
        EdbatchError: It is something else; of type `error`.

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
    """Returns the structures in a list argument.

    Args:
        error: Type of the error to raise.
        name: Description of the argument, as the subject of a sentence.
        value: The argument's value.

    Returns:
        The elements of the argument.

    Raises:
        EdbatchError: It is not a list, or it contains something else; of type `error`.
    """
    found = list_of(error, name, value, _ONE)
    for k, each in enumerate(found):
        check_structure(error, f"number {k} of {name}", each)
    return found
