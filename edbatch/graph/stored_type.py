"""Node types as they are pickled: cells by name, parameters by path."""

import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from edbatch.errors import PickleError
from edbatch.graph.cell import Cell
from edbatch.graph.node_type import Aval, CallTemplate, NodeType
from edbatch.graph.parameters import part_of
from edbatch.graph.reference import find, reference

_PLAIN = (str, int, float, complex, bytes, type(None))
_Leaves = tuple[tuple[str, Any], ...]


class StoredType(NamedTuple):
    """A type in the form in which it is pickled; fields as in `NodeType`.

    In the template, ``("parameter", path)`` is ``("parameter", steps)``, and a constant
    that is a function is ``("imported", (module, name))``.
    """

    cell: Cell
    template: CallTemplate
    operand_kinds: tuple[int, ...]
    external_kinds: tuple[int, ...]
    output_kinds: tuple[int, ...]
    output_tree: Any


class PortableType(NamedTuple):
    """A type that needs no table: it has shapes and dtypes instead of array kinds.

    Fields as in `StoredType`.
    """

    cell: Cell
    template: CallTemplate
    operands: tuple[Aval, ...]
    externals: tuple[Aval, ...]
    outputs: tuple[Aval, ...]
    output_tree: Any


def portable(node_type: NodeType, avals: Sequence[Aval]) -> PortableType:
    """Describes a type for a process that has a different table.

    Args:
        node_type: The type.
        avals: The array kinds of its table.

    Returns:
        The description.

    Raises:
        PickleError: As for `store`.
    """
    stored = store(node_type)
    operands, externals, outputs = (
        tuple([avals[kind] for kind in kinds])
        for kinds in (stored.operand_kinds, stored.external_kinds, stored.output_kinds)
    )
    return PortableType(
        stored.cell, stored.template, operands, externals, outputs, stored.output_tree
    )


def store(node_type: NodeType) -> StoredType:
    """Describes a type for a pickle.

    Args:
        node_type: The type.

    Returns:
        The description.

    Raises:
        PickleError: One of its constants cannot be pickled.
    """
    template = node_type.template
    leaves = tuple(_stored_leaf(node_type, *leaf) for leaf in template.leaves)
    return StoredType(
        node_type.cell,
        replace(template, leaves=leaves),
        node_type.operand_kinds,
        node_type.external_kinds,
        node_type.output_kinds,
        node_type.output_tree,
    )


def _stored_leaf(node_type: NodeType, kind: str, content: Any) -> tuple[str, Any]:
    if kind == "parameter":
        return kind, content._steps
    if kind != "static" or type(content) in _PLAIN:
        return kind, content
    name = reference(content) if callable(content) else None
    if name is not None:
        return "imported", name
    try:
        pickle.dumps(content)
    except Exception as error:
        raise PickleError(
            f"constants of cells are pickled with a recording, but one of cell"
            f" {node_type.key.cell!r} is {content!r}, which cannot be: {error}; define"
            " it at the top level of a module, or pass a name or a number instead"
        ) from error
    return kind, content


def template_for(params: Any, leaves: _Leaves) -> _Leaves:
    """Restores the leaves of a stored template.

    Args:
        params: The stand-in for the parameters, on which stored paths are followed.
        leaves: The stored leaves.

    Returns:
        The leaves of a `CallTemplate`.

    Raises:
        PickleError: A constant cannot be imported.
    """
    found = []
    for kind, content in leaves:
        if kind == "parameter":
            found.append((kind, part_of(params, content)))
        elif kind == "imported":
            found.append(("static", _import(*content)))
        else:
            found.append((kind, content))
    return tuple(found)


def _import(module: str, qualname: str) -> Any:
    try:
        return find(module, qualname)
    except (ImportError, AttributeError) as error:
        raise PickleError(
            f"a pickle refers to {module}.{qualname}, a constant of a cell, which"
            f" cannot be imported here: {error}; make the module importable here"
        ) from error


def moved(template: CallTemplate, params: Any) -> CallTemplate:
    """Converts a template of one table of types to the stand-in of another table.

    Args:
        template: The template.
        params: The stand-in of the other table, for parameters of the same structure.

    Returns:
        The template, which takes the same parts of the other stand-in.
    """
    leaves: Sequence[tuple[str, Any]] = [
        (kind, part_of(params, content._steps) if kind == "parameter" else content)
        for kind, content in template.leaves
    ]
    return replace(template, leaves=tuple(leaves))
