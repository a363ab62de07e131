"""Checks of a table of types when its recordings are used."""

from edbatch.errors import CellError, PickleError, PlanError
from edbatch.graph.node_type import NodeType
from edbatch.graph.type_table import TypeTable, changed_cell, x64_enabled


def check_stored(types: TypeTable, node_type: NodeType) -> None:
    """Checks that a pickled type's cell returns the same as where it was recorded.

    Args:
        types: The table.
        node_type: A type of the table.

    Raises:
        PickleError: The cell cannot be traced here, or it returns other shapes, dtypes
            or structure.
    """
    if not node_type.is_stored:
        return
    try:
        found = types.trace(node_type)
    except CellError as error:
        raise PickleError(
            "a recording must run with the cells that it was made with, but here cell"
            f" {node_type.key.cell!r} is another one: {error}; usually its code was"
            " changed since; record again"
        ) from error
    if found != (node_type.output_kinds, node_type.output_tree):
        raise changed_cell(node_type)


def check_default_of_rng(types: TypeTable, node_type: NodeType) -> None:
    """Checks that a type's cell returns the same shapes and dtypes without its key.

    Args:
        types: The table.
        node_type: A type that does not need keys.

    Raises:
        CellError: It cannot be traced without a key, or returns other shapes or dtypes.
    """
    expected = node_type.output_kinds, node_type.output_tree
    if types.trace(node_type.without_rng()) != expected:
        raise CellError(
            f"cell {node_type.key.cell!r} returns other shapes or dtypes without its"
            " key than with one; return the same in both cases"
        )


def require_same(types: TypeTable, other: TypeTable, what: str) -> None:
    """Checks that an object was made with a given table.

    Args:
        types: The table.
        other: The table that the object was made with.
        what: Name of the object, for the message.

    Raises:
        PlanError: It was made with another table.
    """
    if other is types:
        return
    if other.x64 != types.x64:
        require_setting(other, what)
    raise PlanError(
        f"{what} was made by another model, or for parameters of other shapes; make it"
        " again with this model's own .record or .plan"
    )


def require_setting(types: TypeTable, what: str) -> None:
    """Checks that ``jax_enable_x64`` is set as when a table was made.

    Args:
        types: The table.
        what: Name of the object that was made with it, for the message.

    Raises:
        PlanError: It is set differently.
    """
    if types.x64 != x64_enabled():
        own, now = ("on", "off") if types.x64 else ("off", "on")
        raise PlanError(
            f"{what} was made while jax_enable_x64 was {own}, but it is {now} here,"
            " where the model gives other dtypes; make it again, or run it in"
            f" `with jax.enable_x64({types.x64}):` (the setting of such a context holds"
            " for one thread)"
        )
