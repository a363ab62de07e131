"""Memory of calls met before, by which recording finds a node's type quickly."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import jax

from edbatch.graph.handle import new_handle
from edbatch.graph.node_type import NodeType
from edbatch.graph.tape import InstanceTape

Branch = defaultdict[Any, Any]


def _new_branch() -> Branch:
    return defaultdict(_new_branch)


class CallMemory:
    """Calls met before, as a tree: by cell, then by the structure of the arguments.

    Attributes:
        root: Branches by cell.
    """

    def __init__(self) -> None:
        self.root = _new_branch()
        self._known: dict[NodeType, KnownType] = {}

    def known(self, node_type: NodeType) -> "KnownType":
        """Returns what recording needs of a type."""
        return self._known.setdefault(node_type, KnownType(node_type))


class KnownType:
    """What `Recorder.call` needs of a type, and how to build its output handles."""

    __slots__ = ("external_kinds", "id", "num_outputs", "outputs", "pair")

    def __init__(self, node_type: NodeType) -> None:
        self.id = node_type.id
        self.external_kinds = node_type.external_kinds
        kinds = node_type.output_kinds
        self.num_outputs = len(kinds)
        tree = node_type.output_tree
        # A pair such as (h, c) is so common that `call` builds it itself.
        self.pair = kinds if tree == jax.tree.structure((0, 0)) else None
        self.outputs: Callable[[InstanceTape, int], Any]
        if jax.tree_util.treedef_is_leaf(tree):
            kind = kinds[0]
            self.outputs = lambda rec, first: new_handle(rec, first, kind)
        else:
            self.outputs = lambda rec, first: jax.tree.unflatten(
                tree, [new_handle(rec, first + k, kind) for k, kind in enumerate(kinds)]
            )
