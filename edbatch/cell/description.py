"""The cells of a model before and after packing."""

from dataclasses import asdict, dataclass
from typing import Any

from edbatch.cell.packed_cell import pack_type
from edbatch.cell.summary import CellSummary
from edbatch.graph.type_table import TypeTable


@dataclass(frozen=True)
class CellDescription:
    """A cell before and after packing.

    Attributes:
        type: Name of the node type, as in policy files.
        before: Its operations as written.
        after: Its operations after packing.

    Example:
        >>> from edbatch.cell import CellSummary
        >>> before, after = CellSummary((), 5), CellSummary((), 4)
        >>> CellDescription("compose/2", before, after).type
        'compose/2'
    """

    type: str
    before: CellSummary
    after: CellSummary

    def to_json(self) -> dict[str, Any]:
        """Returns the description as JSON values."""
        return asdict(self)


def describe_cells(types: TypeTable, **options: Any) -> list[CellDescription]:
    """Packs the cells of a model and describes both forms.

    Args:
        types: The model's node types recorded so far: ``batched.types``.
        **options: As for `pack_cell`.

    Returns:
        One description per type.

    Example:
        >>> import edbatch as eb
        >>> import jax.numpy as jnp
        >>> @eb.cell
        ... def gate(params, x):
        ...     return jnp.tanh(x @ params["W"]) * (x @ params["U"])
        >>> params = {"W": jnp.eye(3), "U": jnp.eye(3)}
        >>> batched = eb.batch(lambda params, x: gate(params, x), params=params)
        >>> _ = batched.record(jnp.ones(3))
        >>> [cell] = describe_cells(batched.types)
        >>> print(cell.type, cell.before.products_text, cell.after.products_text)
        gate/0 2 of 3 by 3x3 1 of 3 by 3x6
    """
    found = []
    for node_type in types.types:
        cell = pack_type(node_type, types, **options)
        found.append(CellDescription(str(node_type.key), cell.before, cell.after))
    return found
