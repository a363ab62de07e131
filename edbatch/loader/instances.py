"""The instances of a loader: recorded once and kept, or anew for each minibatch."""

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
_MOST_PER_TASK = 64  # instances that a worker records at a time, to be kept
_MOST = 2**40  # instances of a data set
_TASKS_PER_WORKER = 4  # at least, so that all have about as much to do


def data_set(instances: Any) -> Any:
    """Returns the data of a loader as something with a length and an index.

    Args:
        instances: A data set that has them, or anything to iterate over.

    Returns:
        The data set itself if it is read by number; else a list.

    Raises:
        LoaderError: It is neither, or repeats without end.
    """
    if _is_read_by_number(instances):
        if len(instances) > _MOST:
            raise LoaderError(
                f"a data set has {_MOST:,} instances at most but this one,"
                f" {shown(instances)}, says that it has {len(instances):,}; usually it"
                " repeats without end, as by .repeat() of Grain; leave that out, since"
                " a loader begins anew in each epoch"
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
        instances: As `data_set` returns them.
        workers: Number of processes that record; they end before this returns.

    Attributes:
        sizes: Number of nodes of each instance; ``[N] int64``.
        workers: Number of processes that record during loops: none.
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
        """Returns a text that differs for other instances."""
        return digest(self._recordings)

    def begin(self) -> Callable[[], None]:
        """Begins a loop; returns what to call at its end."""
        return lambda: None

    def ask(self, index: np.ndarray, epoch: int) -> None:
        """Nothing has to be recorded for a minibatch."""

    def recordings(
        self, index: np.ndarray, epoch: int, ticket: Ticket | None
    ) -> list[DataflowGraph]:
        """Returns the recordings of a minibatch's instances."""
        return [self._recordings[k] for k in index.tolist()]

    def close(self) -> None:
        """There is nothing to end."""


def _read(instances: Any, number: int) -> Any:
    """Reads an instance of a data set; what is raised names it."""
    note = f"while reading instance {number} of the data set"
    try:
        return read_instance(instances, number)
    except StopIteration as error:  # would end what iterates over the data
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
        instances: As `data_set` returns them.
        transform: Changes instances; None for none.
        seed: Seed of its random numbers.
        workers: Number of processes that record; 0 to record here.

    Attributes:
        sizes: None: no instance was recorded yet.
        workers: Number of processes.
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
        if workers:  # errors about pickles belong to the constructor
            self._setup()

    def digest(self) -> str:
        """Returns the same text for all data: none of it was read yet."""
        return FRESH

    def begin(self) -> Callable[[], None]:
        """Begins a loop; returns what to call when nobody waits for recordings."""
        if not self.workers:
            return lambda: None
        if self._processes is not None and not self._processes.alive:
            self.close()
        if self._processes is None:
            self._processes = Workers(self.workers, self._setup(), self._unpack)
        processes, stopped = self._processes, self._processes.begin()

        def end() -> None:
            stopped.set()
            if not processes.alive:  # one has ended; the others are of no use
                processes.close()

        return end

    def ask(self, index: np.ndarray, epoch: int) -> Ticket | None:
        """Has a minibatch recorded by a worker, if there are any."""
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
        """Ends the processes."""
        if self._processes is not None:
            self._processes.close()
            self._processes = None

    def _setup(self) -> bytes:
        return _setup(self._types, self._source, self._whole)


def _recorded_by(workers: int, batched: BatchedFunction, instances: Any) -> list[Any]:
    """Records, in processes, what is not recorded yet."""
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

        # Answers are read in a thread, so that no worker waits for that.
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
    """Returns what reads workers' answers, in the order of the tasks."""
    unpacker = GraphUnpacker(types)
    return lambda answer: [unpacker.unpack(each) for each in answer]


def _setup(types: TypeTable, source: DataSource | None, whole: bool) -> bytes:
    """Pickles what workers need, or says what of it cannot be pickled."""
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
    """Refuses a transform that is no function.

    Args:
        transform: What the user gave; None for none.

    Raises:
        LoaderError: It cannot be called.
    """
    if transform is not None and not callable(transform):
        raise LoaderError(
            "transform of a loader is a function of an instance and a random generator,"
            f" but this is {shown(transform)}, of type {type(transform).__name__};"
            " usually what the function returned; pass the function itself"
        )


def _check_not_recorded(instances: Iterable[Any]) -> None:
    at_hand = isinstance(instances, list | tuple)
    if at_hand and any(isinstance(each, DataflowGraph) for each in instances):
        raise LoaderError(
            "with keep=False instances are recorded for each minibatch, but there are"
            " recordings among them; pass the instances, or leave keep=False out"
        )
