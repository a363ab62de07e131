"""A limit on the types of cells that requests may bring to a server.

Each shape, dtype and static argument that a cell is called with makes a type, which is
compiled into the program of all waves. Without a limit clients that send inputs of ever
new lengths make each of them larger, and everybody waits.
"""

import sys

from edbatch.graph.type_table import TypeTable


class NewTypes:
    """How many types a model's table may have while a server runs.

    Args:
        more: Types beside those that are known when `count_from` is called, or None
            for any number.

    Attributes:
        most: How many there may be.
        refusal: What is told to a request that brings another one.
    """

    def __init__(self, more: int | None) -> None:
        self._more = more
        self.most = sys.maxsize
        self.refusal = (
            "is called with shapes, dtypes or static arguments that no request had"
            f" before, and the server has taken {more} such types since its warm-up,"
            " which is max_new_types of the server, since each is compiled; send an"
            " input of sizes that it knows"
        )

    def count_from(self, types: TypeTable) -> None:
        """Lets as many types come beside those that a table has now.

        Args:
            types: The table.
        """
        if self._more is not None:
            self.most = len(types) + self._more
