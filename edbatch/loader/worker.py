"""A worker process of a loader, which reads instances and records them.

A worker traces the cells of new types, but compiles and runs nothing. So it starts no
XLA client, and takes no GPU memory.
"""

import pickle
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import jax

from edbatch.errors import LoaderError
from edbatch.graph.portable_graph import GraphPacker, PackedGraph
from edbatch.graph.type_table import TypeTable
from edbatch.loader.fresh import DataSource, InstanceRecorder

# JAX settings that affect shapes and dtypes, wherever they were set.
SETTINGS = (
    "jax_enable_x64",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_default_prng_impl",
)
STARTED = 0  # serial number of the message that the worker has started
PROTOCOL = 5


class Setup(NamedTuple):
    """Everything that a worker needs to start, sent once.

    Attributes:
        model: The model.
        types: The model's types known so far.
        source: The data set; None if tasks contain instances.
        whole: As for `InstanceRecorder`.
        settings: Values of `SETTINGS`.
    """

    model: Any
    types: TypeTable
    source: DataSource | None
    whole: bool
    settings: dict[str, Any]


class Task(NamedTuple):
    """Instances to record.

    Attributes:
        numbers: Their numbers in the data set.
        epoch: The epoch in which they are read.
        instances: The instances; None if the worker reads them.
    """

    numbers: list[int]
    epoch: int
    instances: list[Any] | None = None


class Failure(NamedTuple):
    """An exception that is sent to the process of the loader.

    Attributes:
        error: The exception, without its traceback.
        text: Its traceback, as Python would print it.
    """

    error: Exception
    text: str


class WorkerTraceback(Exception):
    """Traceback of an exception raised in a worker process; set as its cause."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class _Worker:
    """The recorder of one process, created for the first task."""

    def __init__(self, setup: bytes) -> None:
        found: Setup = pickle.loads(setup)
        for name, value in found.settings.items():
            jax.config.update(name, value)
        found.types.model = found.model
        self._recorder = InstanceRecorder(found.types, found.whole)
        self._packer = GraphPacker(found.types)
        self._source = found.source

    def record(self, task: Task) -> list[PackedGraph]:
        given = task.instances
        if given is not None:
            known = dict(zip(task.numbers, given, strict=True))
            graphs = self._recorder.record(task.numbers, known.__getitem__)
        else:
            source = self._source
            assert source is not None, "a task without instances has a data set"
            graphs = self._recorder.record(
                task.numbers, lambda number: source.read(number, task.epoch)
            )
        return [self._packer.pack(each) for each in graphs]


def serve(connection: Connection, setup: bytes) -> None:
    """Answers tasks until the other end of the connection is closed.

    Args:
        connection: Receives a serial number and a `Task`; sends the number and a list
            of `PackedGraph`, or a `Failure`. The first message sent says that the
            process has started.
        setup: A pickled `Setup`.
    """
    worker = None
    with suppress(OSError):
        connection.send_bytes(pickle.dumps((STARTED, None), PROTOCOL))
    while True:
        try:
            received = connection.recv_bytes()
        except (EOFError, OSError):
            return
        serial, pickled = pickle.loads(received)
        answer: list[PackedGraph] | Failure
        try:
            if worker is None:
                worker = _Worker(setup)
            answer = worker.record(pickle.loads(pickled))
            message = pickle.dumps((serial, answer), PROTOCOL)
        except Exception as error:
            message = pickle.dumps((serial, _failure(error)), PROTOCOL)
        try:
            connection.send_bytes(message)
        except OSError:  # nobody waits for it any more
            return


def _failure(error: Exception) -> Failure:
    text = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error, PROTOCOL))
    except Exception:  # it cannot be pickled, but its message can
        found = LoaderError(
            f"a worker process of a loader met {type(error).__name__}: {error}"
        )
        for note in getattr(error, "__notes__", ()):
            found.add_note(note)
        return Failure(found, text)
    return Failure(error, text)
