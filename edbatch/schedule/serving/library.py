"""The instances that requests are drawn from, as flat arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from edbatch.errors import PolicyError
from edbatch.graph.node_type import TypeKey
from edbatch.graph.structure import GraphStructure
from edbatch.graph.structure_arguments import structures_of
from edbatch.schedule.frontier import start_frontier
from edbatch.schedule.sufficient_condition import start_heads


@dataclass(frozen=True, eq=False)
class InstanceLibrary:
    """``K`` instances with ``N`` nodes and ``E`` edges in all, of ``T`` types.

    Attributes:
        type_keys: The types.
        start: First node of each instance, and the end.
        node_type: Type of each node.
        consumer_start: First reader of each node, and the end.
        consumers: Readers, by their number in the library.
        indegree: Number of operands of each node.
        depth: Longest path from a node without operands to each node.

    Example:
        >>> from edbatch.schedule.examples import tree
        >>> library = InstanceLibrary.of([tree("((ab)cb)c"), tree("(ab)c")])
        >>> library.num_instances, library.start.tolist()
        (2, [0, 5, 8])
    """

    type_keys: tuple[TypeKey, ...]
    start: np.ndarray  # [K + 1] int32
    node_type: np.ndarray  # [N] int32
    consumer_start: np.ndarray  # [N + 1] int32
    consumers: np.ndarray  # [E] int32
    indegree: np.ndarray  # [N] int32
    depth: np.ndarray  # [N] int32

    @classmethod
    def of(cls, structures: Sequence[GraphStructure]) -> "InstanceLibrary":
        """Collects the instances of recorded graphs.

        Args:
            structures: Graphs of one model, each of one instance or more.

        Returns:
            The library.

        Raises:
            PolicyError: There are no graphs; one is not a graph, has no nodes or has an
                instance without nodes; or they do not have the types of one model.
        """
        structures = structures_of(PolicyError, "the graphs of a library", structures)
        if not structures:
            raise PolicyError(
                "a library needs at least one instance but received none; give some"
            )
        keys = max((each.type_keys for each in structures), key=len)
        for each in structures:
            if each.type_keys != keys[: each.num_types]:
                raise PolicyError(
                    "the instances of a library have the types of one model, in one"
                    f" order, but one has {', '.join(map(str, each.type_keys))} where"
                    f" another has {', '.join(map(str, keys))}; record all of them with"
                    " the same batched function"
                )
            if not each.num_nodes or not each.instance_nodes.all():
                raise PolicyError(
                    "every instance needs at least one node but one has none; leave it"
                    " out"
                )
        sizes = np.concatenate([each.instance_nodes for each in structures])
        nodes = np.cumsum([0, *(each.num_nodes for each in structures)])
        readers = [each.consumers for each in structures]
        edges = np.cumsum([0, *(len(each[1]) for each in readers)])
        return cls(
            type_keys=keys,
            start=np.cumsum([0, *sizes]).astype(np.int32),
            node_type=_joined([each.node_type for each in structures]),
            consumer_start=np.append(
                _joined([r[0][:-1] + e for r, e in zip(readers, edges, strict=False)]),
                edges[-1],
            ).astype(np.int32),
            consumers=_joined([r[1] + n for r, n in zip(readers, nodes, strict=False)]),
            indegree=_joined([each[2] for each in readers]),
            depth=_joined([each.depth for each in structures]),
        )

    @property
    def num_instances(self) -> int:
        """Number of instances, K."""
        return len(self.start) - 1

    @property
    def num_types(self) -> int:
        """Number of types, T."""
        return len(self.type_keys)

    @cached_property
    def instance_types(self) -> np.ndarray:
        """Number of nodes of each instance by type; ``[K, T] int32``."""
        sizes = np.diff(self.start)
        owner = np.repeat(np.arange(self.num_instances), sizes)
        found = np.zeros((self.num_instances, self.num_types), np.int32)
        np.add.at(found, (owner, self.node_type), 1)
        return found

    @cached_property
    def mean_depth(self) -> np.ndarray:
        """Mean depth of the nodes of each type, ``[T] float64``; 0 without nodes."""
        count = np.bincount(self.node_type, minlength=self.num_types)
        total = np.bincount(self.node_type, self.depth, minlength=self.num_types)
        return total / np.maximum(1, count)

    @cached_property
    def blocked(self) -> np.ndarray:
        """Operands of each node that are not clear of each type; ``[T, N] int32``."""
        return self._heads[0]

    @cached_property
    def head_counts(self) -> np.ndarray:
        """Number of initial heads of each type in each instance; ``[K, T] int32``."""
        is_head = self.blocked[self.node_type, np.arange(len(self.node_type))] == 0
        found = np.zeros((self.num_instances, self.num_types), np.int32)
        owner = np.repeat(np.arange(self.num_instances), np.diff(self.start))
        np.add.at(found, (owner[is_head], self.node_type[is_head]), 1)
        return found

    @cached_property
    def _heads(self) -> tuple[np.ndarray, np.ndarray]:
        heads = start_heads(start_frontier(self._structure))
        return heads.blocked, heads.heads

    @cached_property
    def _structure(self) -> GraphStructure:
        """All instances as one graph; operands are the inverse of readers."""
        source = np.repeat(
            np.arange(len(self.node_type)), np.diff(self.consumer_start)
        ).astype(np.int32)
        order = np.argsort(self.consumers, kind="stable")
        return GraphStructure(
            type_keys=self.type_keys,
            node_type=self.node_type,
            operand_start=np.cumsum([0, *self.indegree]).astype(np.int32),
            operand_node=source[order],
            instance_nodes=np.diff(self.start).astype(np.int32),
        )


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts).astype(np.int32)
