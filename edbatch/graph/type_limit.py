"""A limit on the types of cells that recordings may add."""


class TypeLimit:
    """Limits the number of recorded types that the model's table does not have.

    Args:
        most: Maximum number of such types.
        refusal: Message for a call that exceeds the limit, after the cell's name.

    Attributes:
        left: How many more types may be recorded.
    """

    def __init__(self, most: int, refusal: str) -> None:
        self._most = self.left = most
        self.refusal = refusal

    def reset(self) -> None:
        """Restarts counting."""
        self.left = self._most
