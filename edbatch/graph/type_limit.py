"""A limit on the types of cells that recordings may bring."""


class TypeLimit:
    """How many types may be recorded that the model's table does not have.

    Args:
        most: How many.
        refusal: What a call of another one is told, after the cell's name.

    Attributes:
        left: How many more.
    """

    def __init__(self, most: int, refusal: str) -> None:
        self._most = self.left = most
        self.refusal = refusal

    def reset(self) -> None:
        """Counts anew."""
        self.left = self._most
