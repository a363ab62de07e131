"""Cache of earlier calls, by which recording finds a node's type quickly."""

from typing import Any

import jax

from edbatch.graph.handle import new_handle
from edbatch.graph.node_type import NodeType
from edbatch.graph.recording_bases import KnownType, SignatureTable
from edbatch.graph.tape import InstanceTape


class CallMemory(SignatureTable):
    """Earlier calls, by cell and by the structure of the arguments."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[NodeType, KnownType] = {}

    def known(self, node_type: NodeType) -> KnownType:
        """Returns the data that recording needs about a type."""
        return self._known.setdefault(node_type, _known_type(node_type))


def _known_type(node_type: NodeType) -> KnownType:
    kinds, tree = node_type.output_kinds, node_type.output_tree

    def leaf(recorder: InstanceTape, first: int) -> Any:
        return new_handle(recorder, first, kinds[0])

    def pytree(recorder: InstanceTape, first: int) -> Any:
        return jax.tree.unflatten(
            tree,
            [new_handle(recorder, first + k, kind) for k, kind in enumerate(kinds)],
        )

    form, outputs = "other", pytree
    if jax.tree_util.treedef_is_leaf(tree):
        form, outputs = "leaf", leaf
    elif tree == jax.tree.structure((0,) * len(kinds)):
        form = "tuple"
    return KnownType(node_type.id, node_type.external_kinds, kinds, form, outputs)
