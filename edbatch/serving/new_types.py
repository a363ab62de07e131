"""Limit on the number of types that requests may add to a server.

Each combination of shapes, dtypes and static arguments that a cell is called with is a
type, which is compiled into the program of all waves. Without a limit, clients that
keep sending inputs of new lengths make this program larger and slower for everyone.
"""

from edbatch.graph.type_limit import TypeLimit


def limit_of(most: int | None) -> TypeLimit | None:
    """Creates the type limit of a server.

    Args:
        most: Number of types that requests may add to those of the latest warm-up and
            of other calls of the batched function; None for no limit.

    Returns:
        The limit, or None.
    """
    if most is None:
        return None
    return TypeLimit(
        most,
        "is called with shapes, dtypes or static arguments that no request had"
        f" before, and the server has taken {most} such types since its warm-up,"
        " which is max_new_types of the server, since each is compiled; send an"
        " input of sizes that it knows",
    )
