"""Names of loops, which stand in compiled programs and in profiles.

What a loop runs is traced under `jax.named_scope`, so each of its operations says in
its metadata what it is for, as in ``jit(f)/while/body/compose[64]/while/body/tanh``.
Nothing else in a program depends on names: it is as large, and compiled as often.
"""

from edbatch.graph.node_type import NodeType
from edbatch.stream.loop import Loop

# A slash divides scopes, and XLA leaves out what follows an at-sign.
_DIVIDERS = str.maketrans("/@", "..")


def type_name(node_type: NodeType) -> str:
    """Names a type in compiled programs.

    Args:
        node_type: The type.

    Returns:
        The cell; then the parameters that it reads, as in ``join{up}``, a star where
        the type runs for several members of a family; then what tells it from types of
        other shapes.
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
        Its type and its width, as ``compose[64]``.
    """
    return f"{type_name(node_type)}[{loop.width}]"
