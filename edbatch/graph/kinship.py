"""Kinship: which types of a model could form a family (`edbatch.graph.family`)."""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax

from edbatch.graph.family import Family
from edbatch.graph.node_type import NodeType
from edbatch.graph.parameters import ParameterPath, Step, part_of
from edbatch.graph.part_structure import PartStructures

_Steps = tuple[Step, ...]
_ANY = ("any", None)  # the step in which the members differ


@dataclass(eq=False)
class Relatives:
    """Types that could form one family.

    Attributes:
        first: The first of these types that was met.
        prefix: Path of the container of which they take different parts.
        keys: By type, the key of the part that it takes.
        family: The family, once there is one.
        members: The position of each key in the family.
    """

    first: NodeType
    prefix: _Steps
    keys: dict[int, Any] = field(default_factory=dict)
    family: Family | None = None
    members: dict[Any, int] = field(default_factory=dict)


class Kinship:
    """Types of a model that could share a loop.

    Args:
        params: The structure of the model's parameters.
    """

    def __init__(self, params: Any) -> None:
        self._params = params
        leaves, treedef = jax.tree.flatten(params)
        self._places = jax.tree.unflatten(treedef, range(len(leaves)))
        self._relatives: dict[Hashable, Relatives] = {}
        self._of_type: list[list[Relatives]] = []
        self._structures = PartStructures(params)

    def add(self, node_type: NodeType) -> None:
        """Adds a type; types must be added in the order of their table."""
        assert node_type.id == len(self._of_type), "types come in order"
        found = []
        for pattern, prefix, key in self._patterns(node_type):
            known = self._relatives.setdefault(pattern, Relatives(node_type, prefix))
            known.keys[node_type.id] = key
            found.append(known)
        self._of_type.append(found)

    def relatives(self, type_id: int) -> list[Relatives]:
        """Returns the relatives of a type that was added.

        Args:
            type_id: The type.

        Returns:
            One entry per container that its parameters are in, in the order of its
            arguments.
        """
        return self._of_type[type_id]

    def find_family(self, relatives: Relatives) -> Family | None:
        """Finds the family of types that could form one.

        Its members are all parts of the container with the structure that these types
        read, not only the parts that they read. So a type that is met later finds its
        member in the family, and the program of a minibatch without it also serves
        minibatches with it. Members are in JAX's order, which sorts the keys of dicts,
        so plans made for another key order refer to the same members.

        Args:
            relatives: The types, and their container.

        Returns:
            The family; None if a call also reads parts of other members or reads a leaf
            twice, or if no leaf differs.
        """
        first, prefix = relatives.first, relatives.prefix
        paths = [path for kind, path in first.template.leaves if kind == "parameter"]
        wanted = [self._structures.number(path._steps) for path in paths]
        found_at: list[tuple[list[int], Any]] = []
        for key in _keys(part_of(self._params, prefix)):
            steps = [_with_key(path._steps, prefix, ("item", key)) for path in paths]
            try:
                found = [self._structures.number(each) for each in steps]
            except (KeyError, IndexError, TypeError, AttributeError):
                continue  # no such part
            if found == wanted:
                found_at.append((self._leaves_of(steps), key))
        found_at.sort(key=lambda each: each[0])
        rows = [leaves for leaves, _ in found_at]
        relatives.members = {key: k for k, (_, key) in enumerate(found_at)}
        own = self._leaves_of([path._steps for path in paths])
        columns = dict(zip(own, zip(*rows, strict=True), strict=True))
        vary = {k: column for k, column in columns.items() if len(set(column)) > 1}
        others = set().union(*vary.values())
        shared = any(k in others for k in columns if k not in vary)
        if shared or not vary or len(own) > len(columns):
            return None
        return Family(tuple(vary), tuple(vary.values()))

    def _leaves_of(self, paths: list[_Steps]) -> list[int]:
        """Returns the positions of the leaves below some paths."""
        return [
            leaf
            for steps in paths
            for leaf in jax.tree.leaves(part_of(self._places, steps))
        ]

    def _patterns(self, node_type: NodeType) -> Iterator[tuple[Hashable, _Steps, Any]]:
        """Yields patterns that relatives share, with prefix and the type's key."""
        template = node_type.template.with_exact_constants()
        paths = [path for kind, path in template.leaves if kind == "parameter"]
        rest = (
            node_type.cell,
            template.treedef,
            (template.operands, template.externals, template.paddings),
            (node_type.operand_kinds, node_type.external_kinds, node_type.output_kinds),
        )
        for prefix, key in _steps_of(paths):
            leaves = tuple(
                (
                    (kind, _with_key(content._steps, prefix, _ANY))
                    if kind == "parameter"
                    else (kind, content)
                )
                for kind, content in template.leaves
            )
            structure = tuple(self._structures.number(path._steps) for path in paths)
            yield (prefix, leaves, structure, *rest), prefix, key


def _steps_of(paths: list[ParameterPath]) -> list[tuple[_Steps, Any]]:
    """Returns the containers on a call's paths, each with the key of the part taken.

    Containers of which a call takes several parts are left out: these parts do not
    distinguish it from its relatives.
    """
    keys: dict[_Steps, set[Any]] = {}
    for path in paths:
        for at, (kind, key) in enumerate(path._steps):
            if kind == "item":
                keys.setdefault(path._steps[:at], set()).add(key)
    return [(prefix, *own) for prefix, own in keys.items() if len(own) == 1]


def _with_key(steps: _Steps, prefix: _Steps, step: Step) -> _Steps:
    """Replaces the step after a prefix of a path, if the path continues there."""
    at = len(prefix)
    if steps[:at] != prefix or len(steps) == at:
        return steps
    return (*prefix, step, *steps[at + 1 :])


def _keys(container: Any) -> Iterator[Any]:
    """Returns the keys of a container's parts."""
    if isinstance(container, Mapping):
        return iter(container)
    return iter(range(len(container)))
