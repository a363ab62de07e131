"""A limit on the number of new types that recordings may add to a table."""


class TypeLimit:
    """Limits how many types recordings may add to the model's table.

    Args:
        most: Maximum number of new types.
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
