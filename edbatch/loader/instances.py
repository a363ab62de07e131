"""The instances of a loader: recorded once and kept, or again for each minibatch."""

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from edbatch.arguments import list_of
from edbatch.batched_function import BatchedFunction
from edbatch.errors import LoaderError, shown
from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.portable_graph import GraphUnpacker, PackedGraph
from edbatch.graph.type_table import TypeTable
from edbatch.loader.fresh import (
    DataSource,
    InstanceRecorder,
    Transform,
    read_instance,
)
from edbatch.loader.prefetch import map_ahead
from edbatch.loader.processes import Ticket, Workers
from edbatch.loader.state import FRESH, digest
from edbatch.loader.worker import PROTOCOL, SETTINGS, Setup, Task

_AT_HAND = (list, tuple, np.ndarray, jax.Array)
_MOST_PER_TASK = 64  # most instances per task when recordings are kept
_MOST = 2**40  # most instances of a data set
_TASKS_PER_WORKER = 4  # minimum, so that the workers' loads are about equal


def data_set(instances: Any) -> Any:
    """Returns the data of a loader as an object with a length and indexing.

    Args:
        instances: A data set with a length and indexing, or any iterable.

    Returns:
        The data set itself if it is read by index; otherwise a list.

    Raises:
        LoaderError: It is neither, or repeats endlessly.
    """
    if _is_read_by_number(instances):
        if len(instances) > _MOST:
            raise LoaderError(
                f"a data set has {_MOST:,} instances at most but this one,"
                f" {shown(instances)}, says that it has {len(instances):,}; usually it"
                " repeats without end, as by .repeat() of Grain; leave that out, since"
                " a loader starts from the beginning in each epoch"
            )
        return instances
    return list_of(LoaderError, "the data of a loader", instances)


def _is_read_by_number(instances: Any) -> bool:
    other = (*_AT_HAND, str, bytes, Mapping)
    reads = hasattr(instances, "__len__") and hasattr(instances, "__getitem__")
    return reads and not isinstance(instances, other)


class KeptInstances:
    """Instances that are recorded once.

    Args:
        batched: The batched function.
        instances: The result of `data_set`.
        workers: Number of processes that record; they end before the constructor
            returns.

    Attributes:
        sizes: Number of nodes of each instance; ``[N] int64``.
        workers: Number of processes that record during loops: 0.
    """

    workers = 0

    def __init__(
        self, batched: BatchedFunction, instances: Any, workers: int = 0
    ) -> None:
        if workers:
            instances = _recorded_by(workers, batched, instances)
        elif _is_read_by_number(instances):
            instances = list(map(partial(_read, instances), range(len(instances))))
        self._recordings = batched.record_all(instances)
        self.sizes = np.array([each.num_nodes for each in self._recordings])

    def digest(self) -> str:
        """Returns a digest of the instances."""
        return digest(self._recordings)

    def begin(self) -> Callable[[], None]:
        """Begins a loop; returns a function to call at its end."""
        return lambda: None

    def ask(self, index: np.ndarray, epoch: int) -> None:
        """Does nothing: all instances are recorded already."""

    def recordings(
        self, index: np.ndarray, epoch: int, ticket: Ticket | None
    ) -> list[DataflowGraph]:
        """Returns the recordings of a minibatch's instances."""
        return [self._recordings[k] for k in index.tolist()]

    def close(self) -> None:
        """Does nothing: there are no processes."""


def _read(instances: Any, number: int) -> Any:
    """Reads an instance of a data set; exceptions get a note that names it."""
    note = f"while reading instance {number} of the data set"
    try:
        return read_instance(instances, number)
    except StopIteration as error:  # would silently end an iteration over the data
        found = RuntimeError("reading a data set raised StopIteration")
        found.add_note(note)
        raise found from error
    except Exception as error:
        error.add_note(note)
        raise


class FreshInstances:
    """Instances that are read and recorded for each minibatch.

    Args:
        batched: The batched function.
        instances: The result of `data_set`.
        transform: Changes instances; None for no change.
        seed: Seed of its random numbers.
        workers: Number of processes that record; 0 to record in this process.

    Attributes:
        sizes: None, because no instance is recorded yet.
        workers: Number of processes that record.
    """

    sizes = None

    def __init__(
        self,
        batched: BatchedFunction,
        instances: Any,
        transform: Transform | None,
        seed: int,
        workers: int,
    ) -> None:
        _check_not_recorded(instances)
        self.workers = workers
        self._types = batched.types
        self._whole = batched.takes_merged
        self._source = DataSource(instances, transform, seed)
        self._recorder = InstanceRecorder(self._types, self._whole)
        self._unpack = _reader(self._types)
        self._processes: Workers | None = None
        if workers:  # so that the constructor raises errors about pickling
            self._setup()

    def digest(self) -> str:
        """Returns the same text for all data, because none was read yet."""
        return FRESH

    def begin(self) -> Callable[[], None]:
        """Begins a loop; returns a callback for when no more recordings are needed."""
        if not self.workers:
            return lambda: None
        if self._processes is not None and not self._processes.alive:
            self.close()
        if self._processes is None:
            self._processes = Workers(self.workers, self._setup(), self._unpack)
        processes, stopped = self._processes, self._processes.begin()

        def end() -> None:
            stopped.set()
            if not processes.alive:  # one has ended, so the others are useless
                processes.close()

        return end

    def ask(self, index: np.ndarray, epoch: int) -> Ticket | None:
        """Gives a minibatch to a worker for recording, if there are workers."""
        if self._processes is None:
            return None
        return self._processes.submit(Task(index.tolist(), epoch))

    def recordings(
        self, index: np.ndarray, epoch: int, ticket: Ticket | None
    ) -> list[DataflowGraph]:
        """Returns a recording of a minibatch, or of each of its instances."""
        if ticket is not None:
            return ticket.result()
        return self._recorder.record(
            index.tolist(), lambda number: self._source.read(number, epoch)
        )

    def close(self) -> None:
        """Ends the worker processes."""
        if self._processes is not None:
            self._processes.close()
            self._processes = None

    def _setup(self) -> bytes:
        return _setup(self._types, self._source, self._whole)


def _recorded_by(workers: int, batched: BatchedFunction, instances: Any) -> list[Any]:
    """Records the instances that are not recorded yet, in worker processes."""
    types, source = batched.types, None
    if _is_read_by_number(instances):
        source = DataSource(instances, None, 0)
        numbers = list(range(len(instances)))
        found: list[Any] = [None] * len(instances)
    else:
        found = list(instances)
        numbers = [k for k, e in enumerate(found) if not isinstance(e, DataflowGraph)]
    size = -(-len(numbers) // (workers * _TASKS_PER_WORKER)) or 1
    size = min(size, _MOST_PER_TASK)
    parts = [numbers[k : k + size] for k in range(0, len(numbers), size)]
    pool = Workers(workers, _setup(types, source, whole=False), _reader(types))
    try:

        def ask(part: list[int]) -> tuple[list[int], Ticket]:
            given = None if source is not None else [found[k] for k in part]
            return part, pool.submit(Task(part, 0, given))

        # A thread reads the answers, so that no worker waits until its answer is read.
        ahead, stop = 2 * workers, pool.begin().set
        for part, recordings in map_ahead(
            _received, map(ask, parts), ahead, ended=stop
        ):
            for k, each in zip(part, recordings, strict=True):
                found[k] = each
    finally:
        pool.close()
    return found


def _received(
    asked: tuple[list[int], Ticket],
) -> tuple[list[int], list[DataflowGraph]]:
    part, ticket = asked
    return part, ticket.result()


def _reader(
    types: TypeTable,
) -> Callable[[Sequence[PackedGraph]], list[DataflowGraph]]:
    """Returns a function that unpacks workers' answers; call it in task order."""
    unpacker = GraphUnpacker(types)
    return lambda answer: [unpacker.unpack(each) for each in answer]


def _setup(types: TypeTable, source: DataSource | None, whole: bool) -> bytes:
    """Pickles a worker's `Setup`; the error names a part that cannot be pickled."""
    settings = {name: getattr(jax.config, name) for name in SETTINGS}
    parts: list[tuple[str, Any]] = [("model", types.model)]
    if source is not None:
        parts += [("transform", source.transform), ("data set", source.instances)]
    for what, part in parts:
        try:
            pickle.dumps(part, PROTOCOL)
        except Exception as error:
            raise _unsendable(what, part, error) from error
    return pickle.dumps(Setup(types.model, types, source, whole, settings), PROTOCOL)


def _unsendable(what: str, part: Any, error: Exception) -> LoaderError:
    return LoaderError(
        f"a loader with workers sends its model and its data to other processes, but"
        f" its {what}, {shown(part)}, cannot be pickled: {error}; usually it is defined"
        " inside a function or by a lambda, or holds an open file; define it at the top"
        " level of a module, open files when they are read, or leave workers out"
    )


def check_transform(transform: Any) -> None:
    """Checks that a transform can be called.

    Args:
        transform: The user's argument; None for no transform.

    Raises:
        LoaderError: It cannot be called.
    """
    if transform is not None and not callable(transform):
        raise LoaderError(
            "transform of a loader is a function of an instance and a random generator,"
            f" but this is {shown(transform)}, of type {type(transform).__name__};"
            " usually the function's result; pass the function itself"
        )


def _check_not_recorded(instances: Iterable[Any]) -> None:
    at_hand = isinstance(instances, list | tuple)
    if at_hand and any(isinstance(each, DataflowGraph) for each in instances):
        raise LoaderError(
            "with keep=False instances are recorded for each minibatch, but there are"
            " recordings among them; pass the instances, or leave keep=False out"
        )
