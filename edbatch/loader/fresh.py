"""Reads and records instances, in this process or in a worker process."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edbatch.errors import LoaderError
from edbatch.graph.call_memory import CallMemory
from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.recorder import record
from edbatch.graph.type_table import TypeTable

Transform = Callable[[Any, np.random.Generator], Any]


@dataclass(frozen=True)
class DataSource:
    """A data set that is read by index.

    Attributes:
        instances: The data set: ``instances[k]`` is an instance.
        transform: Changes an instance, with its own random generator; None for no
            change.
        seed: Seed of the generators.
    """

    instances: Any
    transform: Transform | None
    seed: int

    def read(self, number: int, epoch: int) -> Any:
        """Reads an instance.

        Args:
            number: Its number in the data set.
            epoch: The epoch; the transform's random numbers depend on it, too.

        Returns:
            The instance.

        Raises:
            LoaderError: There is no such instance; see `read_instance`.
        """
        instance = read_instance(self.instances, number)
        if self.transform is None:
            return instance
        rng = np.random.default_rng([self.seed, epoch, number])
        return self.transform(instance, rng)


def read_instance(instances: Any, number: int) -> Any:
    """Reads an instance of a data set.

    Args:
        instances: The data set.
        number: The instance's number.

    Returns:
        The instance. In a list or tuple it may be None: the model may accept that.

    Raises:
        LoaderError: It is None, and the data set is not a list or tuple.
    """
    instance = instances[number]
    if instance is None and not isinstance(instances, list | tuple):
        raise LoaderError(
            f"instance {number} of the data set is None; usually a filter removed it:"
            " Grain's MapDataset keeps None in its place; pass a list of the remaining"
            " instances"
        )
    return instance


class InstanceRecorder:
    """Records instances as they are read.

    Args:
        types: The model's table of types.
        whole: Whether a minibatch becomes one recording, rather than one per instance.
        what: Name of the collection in which instances are numbered, for notes.
    """

    def __init__(self, types: TypeTable, whole: bool, what: str = "data set") -> None:
        assert types.model is not None, "a recorder's types know their model"
        self._model = types.model
        self._types = types
        self._whole = whole
        self._what = what
        self._memory = CallMemory()

    def record(
        self, numbers: Sequence[int], read: Callable[[int], Any]
    ) -> list[DataflowGraph]:
        """Records some instances.

        Args:
            numbers: Their numbers in the data set.
            read: Reads the instance with a number.

        Returns:
            One recording of all, or one of each.

        Raises:
            Exception: Raised by reading or recording, with a note that names the
                instance.
        """
        current = numbers[0]

        def instances() -> Iterator[Any]:
            nonlocal current
            for current in numbers:
                yield read(current)

        try:
            if not self._whole:
                return [self._record_one(each) for each in instances()]
            return [record(self._model, self._types, instances(), self._memory)]
        except Exception as error:
            error.add_note(f"while recording instance {current} of the {self._what}")
            raise

    def _record_one(self, instance: Any) -> DataflowGraph:
        return record(self._model, self._types, [instance], self._memory)
