"""Names of loops, as they appear in compiled programs and in profiles.

A loop's body is traced under `jax.named_scope`, so the metadata of each operation shows
which loop it belongs to, as in ``jit(f)/while/body/compose[64]/while/body/tanh``.
Nothing else in a program depends on names: its size and the number of compilations
do not change.
"""

from edbatch.graph.node_type import NodeType
from edbatch.stream.loop import Loop

# A slash separates scopes, and XLA drops everything after an at-sign.
_DIVIDERS = str.maketrans("/@", "..")


def type_name(node_type: NodeType) -> str:
    """Names a type in compiled programs.

    Args:
        node_type: The type.

    Returns:
        The cell; then the parameters that it reads, as in ``join{up}``, or a star if
        the type runs for several members of a family; then the variant, which
        distinguishes it from types of other shapes.
    """
    key = node_type.key
    path = "*" if node_type.family is not None else key.path
    name = f"{key.cell}{{{path}}}" if path else key.cell
    variant = f"~{key.variant}" if key.variant else ""
    return f"{name}{variant}".translate(_DIVIDERS)


def loop_name(node_type: NodeType, loop: Loop) -> str:
    """Names a loop in compiled programs.

    Args:
        node_type: The loop's type.
        loop: The loop.

    Returns:
        The loop's type and width, as in ``compose[64]``.
    """
    return f"{type_name(node_type)}[{loop.width}]"
