"""Kinship: which types of a model could be of one family (see `family`)."""

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
    """Types that could be of one family.

    Attributes:
        first: The first type that was met.
        prefix: Where in the parameters they differ.
        keys: By type, the key of its parameters there.
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
        """Takes a type in; types come in the order of their table."""
        assert node_type.id == len(self._of_type), "types come in order"
        found = []
        for pattern, prefix, key in self._patterns(node_type):
            known = self._relatives.setdefault(pattern, Relatives(node_type, prefix))
            known.keys[node_type.id] = key
            found.append(known)
        self._of_type.append(found)

    def relatives(self, type_id: int) -> list[Relatives]:
        """Returns the relatives of a type that was taken in.

        Args:
            type_id: The type.

        Returns:
            One entry per container that its parameters stand in, in the order of its
            arguments.
        """
        return self._of_type[type_id]

    def find_family(self, relatives: Relatives) -> Family | None:
        """Finds a family: of all parameters like those that the types read.

        Types that are met later find their member in it, so that the program of a
        minibatch without some of them serves those with them. Members stand in the
        order of JAX, which sorts the keys of dicts: plans that were made for another
        order of them name the same ones.

        Args:
            relatives: The types.

        Returns:
            The family; None if a call reads parts of other members, too.
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
        """The positions of the leaves below some paths."""
        return [
            leaf
            for steps in paths
            for leaf in jax.tree.leaves(part_of(self._places, steps))
        ]

    def _patterns(self, node_type: NodeType) -> Iterator[tuple[Hashable, _Steps, Any]]:
        """The facts that a type shares with relatives, and those that tell it apart."""
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
    """The steps of a call's paths into containers: where, and to which part.

    Where a call takes several parts of a container, it is not these that tell it from
    its relatives.
    """
    keys: dict[_Steps, set[Any]] = {}
    for path in paths:
        for at, (kind, key) in enumerate(path._steps):
            if kind == "item":
                keys.setdefault(path._steps[:at], set()).add(key)
    return [(prefix, *own) for prefix, own in keys.items() if len(own) == 1]


def _with_key(steps: _Steps, prefix: _Steps, step: Step) -> _Steps:
    """A path with another step behind a prefix, if it passes there."""
    at = len(prefix)
    if steps[:at] != prefix or len(steps) == at:
        return steps
    return (*prefix, step, *steps[at + 1 :])


def _keys(container: Any) -> Iterator[Any]:
    """The keys of a container's parts."""
    if isinstance(container, Mapping):
        return iter(container)
    return iter(range(len(container)))
