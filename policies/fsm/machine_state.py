"""The rows of a machine's table, and their JSON form in files."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from edbatch.errors import nearest, shown
from edbatch.graph.node_type import TypeKey
from edbatch.policies.files.json_file import check_names, read_entry


@dataclass(frozen=True, order=True)
class MachineState:
    """The action of a machine on one frontier.

    Attributes:
        frontier: The encoded frontier; positions in the machine's types.
        action: The type that runs; a position in the machine's types.
        visits: Number of choices that training made in this state.
        value: Return of the action, as estimated in training.

    Example:
        >>> MachineState((0, 2), action=2, visits=7).frontier
        (0, 2)
    """

    frontier: tuple[int, ...]
    action: int
    visits: int = 0
    value: float = 0.0

    def to_json(self, labels: list[str]) -> dict[str, Any]:
        """Returns the state as JSON values, with types by name.

        Args:
            labels: A name for each type.

        Returns:
            The values.
        """
        return {
            "frontier": [labels[symbol] for symbol in self.frontier],
            "action": labels[self.action],
            "visits": int(self.visits),
            "value": float(self.value),
        }

    @classmethod
    def from_json(
        cls, values: Any, where: str, position: dict[str, int]
    ) -> "MachineState":
        """Reads the JSON values that `to_json` returns.

        Args:
            values: JSON values.
            where: Description of the state, for messages.
            position: The position of each type by its name.

        Returns:
            The state.

        Raises:
            ValueError: An entry is missing or wrong; the message is a clause that names
                it.
        """
        frontier = read_entry(values, where, "frontier", list)
        labels = [*frontier, read_entry(values, where, "action", str)]
        for label in labels:
            if not isinstance(label, str) or label not in position:
                hint = nearest(str(label), position)
                raise ValueError(
                    f"{where} refers to an unknown type {shown(label)}, {hint}"
                )
        *symbols, action = [position[label] for label in labels]
        visits = read_entry(values, where, "visits", int)
        value = read_entry(values, where, "value", float)
        check_names(values, where, ("frontier", "action", "visits", "value"))
        return cls(tuple(symbols), action, visits, value)


def type_labels(types: tuple[TypeKey, ...]) -> list[str]:
    """Returns the names of a policy's types in its states.

    Returns:
        The types as text, with the position appended to duplicates.

    Example:
        >>> type_labels((TypeKey("leaf", "", 0), TypeKey("compose", "enc", 4)))
        ['leaf/0', 'compose@enc/4']
    """
    texts = [str(key) for key in types]
    count = Counter(texts)
    return [
        text if count[text] == 1 else f"{text}#{position}"
        for position, text in enumerate(texts)
    ]
