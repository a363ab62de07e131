"""A limit on the types of cells that requests may bring to a server.

Each shape, dtype and static argument that a cell is called with makes a type, which is
compiled into the program of all waves. Without a limit clients that send inputs of ever
new lengths make it larger and slower for everybody.
"""

from edbatch.graph.type_limit import TypeLimit


def limit_of(most: int | None) -> TypeLimit | None:
    """Returns the limit of a server.

    Args:
        most: How many types requests may bring beside those of the latest warm-up, and
            of other calls of the batched function; None for any number.

    Returns:
        The limit, if there is one.
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
