"""Numbers the structures of parts of the parameters."""

from collections.abc import Hashable
from typing import Any

import jax

from edbatch.graph.constants import number_marks
from edbatch.graph.parameters import Step, part_of


class PartStructures:
    """Distinguishes parts of the parameters only by structure, shapes and dtypes.

    Args:
        params: The structure of the model's parameters.
    """

    def __init__(self, params: Any) -> None:
        self._params = params
        self._of_part: dict[tuple[Step, ...], int] = {}
        self._numbers: dict[Hashable, int] = {}

    def number(self, steps: tuple[Step, ...]) -> int:
        """Returns the number that all parts of the same structure share.

        Args:
            steps: The steps from the root to the part.

        Returns:
            The number.
        """
        if steps not in self._of_part:
            leaves, treedef = jax.tree.flatten(part_of(self._params, steps))
            shapes = tuple((each.shape, each.dtype) for each in leaves)
            facts = treedef, number_marks(treedef), shapes
            number = self._numbers.setdefault(facts, len(self._numbers))
            self._of_part[steps] = number
        return self._of_part[steps]
