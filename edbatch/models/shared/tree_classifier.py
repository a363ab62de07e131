"""Models that classify trees or their nodes, for any tree network."""

from collections.abc import Callable
from functools import partial
from typing import Any

from edbatch.data import Tree

Model = Callable[[Any, Tree], dict[str, Any]]
# (parameters, tree) -> the vector h of each node, children before their parent.
States = Callable[[Any, Tree], list[Any]]


def root_classifier(states: States, classify: Callable[[Any, Any], Any]) -> Model:
    """Makes a model that encodes a tree and classifies it as a whole.

    Args:
        states: Returns the vector of each node.
        classify: The cell ``(params, h) -> [L]``.

    Returns:
        A model that returns ``state``: the root's ``h``, ``[H]``; ``logits``: ``[L]``.
    """
    return partial(_classify_root, states, classify)


def _classify_root(
    states: States, classify: Callable[[Any, Any], Any], params: Any, tree: Tree
) -> dict[str, Any]:
    h = states(params, tree)[-1]
    return {"state": h, "logits": classify(params, h)}


def node_classifier(states: States, classify: Callable[[Any, Any], Any]) -> Model:
    """Makes a model that encodes a tree and classifies every node.

    Args:
        states: Returns the vector of each node.
        classify: The cell ``(params, h) -> [L]``.

    Returns:
        A model that returns ``state``: the root's ``h``, ``[H]``; ``logits``: a list
        with one ``[L]`` per node, children before their parent.
    """
    return partial(_classify_nodes, states, classify)


def _classify_nodes(
    states: States, classify: Callable[[Any, Any], Any], params: Any, tree: Tree
) -> dict[str, Any]:
    found = states(params, tree)
    return {"state": found[-1], "logits": [classify(params, h) for h in found]}
