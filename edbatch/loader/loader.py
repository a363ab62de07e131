"""The loader: minibatches of recordings, planned while the device computes."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, replace
from typing import Any, NamedTuple, Self

import numpy as np

from edbatch.arguments import check_flag, check_number
from edbatch.batched_function import BatchedFunction
from edbatch.compilation.signature import name_of
from edbatch.errors import LoaderError, shown
from edbatch.graph.type_table import x64_enabled
from edbatch.loader.device import Settings, send
from edbatch.loader.fresh import Transform
from edbatch.loader.instances import (
    FreshInstances,
    KeptInstances,
    check_transform,
    data_set,
)
from edbatch.loader.minibatch import Minibatch
from edbatch.loader.order import epoch_order, evenly_spaced
from edbatch.loader.prefetch import map_ahead
from edbatch.loader.processes import Stopped, Ticket
from edbatch.loader.report import LoaderReport, WaitClock
from edbatch.loader.state import LoaderState


class _Task(NamedTuple):
    """A minibatch to be planned."""

    epoch: int
    step: int
    instances: np.ndarray  # [B] int64
    ticket: Ticket | None  # of its recording by a worker


class Loader:
    """Minibatches of a data set, planned in background threads.

    The constructor records every instance once. A loop over the loader is one epoch;
    the next loop is the next epoch, in a new order. `epochs` yields several epochs
    without a pause between them. The order of the instances depends only on the data,
    the seed and the settings, not on the timing of threads. If a loop is left early,
    the next one continues after the last minibatch yielded. A loop's threads end with
    it.

    With ``keep=False`` an instance is read and recorded each time a minibatch contains
    it: for data sets whose recordings would not fit into memory, and for a `transform`
    that changes instances randomly.

    With ``workers=N``, N processes read and record instances: in the constructor if
    recordings are kept, otherwise from the first loop until the loader is closed, for
    example by ``with eb.Loader(...) as loader``. Minibatches, types and plans are the
    same as without workers. The model, the data set and the transform are pickled, so
    their functions and classes must be defined at the top level of a module. A script
    must start its work below ``if __name__ == "__main__":``, because workers import it.
    Workers do not use GPUs. A data set with a length and indexing that is not a list,
    tuple or array is read by the workers, not by this process.

    With ``fit=True``, decisions that depend on instances are based on a sample of the
    data set, not on the first minibatch that has a type (see `edbatch.Batched.fit`).
    The sample is ``batch_size`` instances, evenly spaced in the data set, independent
    of the order. With ``keep=False`` these are additionally read and recorded in this
    process, as for epoch 0. Use ``fit=True`` for the loader of the training data,
    before other plans are made.

    A last minibatch that is not full is padded to ``batch_size`` instances, so that it
    needs no program of its own. A loss has to mask its padding rows, as in
    ``jnp.mean(losses, where=plan.instance_mask)``, and takes the targets of
    `Minibatch.padded_index`. The lists of padding rows are empty, so computations over
    the elements of a `Ragged` need no mask. With ``pad=False``, or if the last
    minibatch is left out (``drop_last=True``), there are no padding rows.

    If JAX's default device has its own memory, as GPUs do, the threads send plans there
    as soon as they are made, so that a step does not wait for a transfer.

    With one thread the plans are also the same in every run, unless they are made by a
    search with a time limit. With several threads, plans of new sizes may be padded
    differently from run to run, which changes results by no more than rounding.

    Args:
        batched: The batched function; it must know the shapes of its parameters
            (``params=`` of `edbatch.batch`, or ``bind``).
        instances: Instances, or recordings of them by this function: a sequence, or any
            iterable, which is converted to a list.
        batch_size: Instances per minibatch.
        seed: Seed of the order, and of a transform's random numbers.
        shuffle: Whether the order is random.
        group_by_size: Whether a minibatch holds instances with similar numbers of
            nodes, see `edbatch.loader.epoch_order`.
        drop_last: Whether to leave out a last minibatch that is not full.
        pad: Whether to pad a last minibatch that is not full.
        prefetch: Minibatches planned ahead of the one in use; 0 for none, and no
            threads. If there are workers during loops, the number per worker.
        threads: Number of threads that plan.
        workers: Number of processes that record; 0 to record in this process.
        keep: Whether each instance is recorded once, and its recording kept.
        transform: Called as ``transform(instance, rng)`` for each instance that is
            read, with a ``numpy.random.Generator`` that depends on the seed, the epoch
            and the instance's number; returns the instance to record. Requires
            ``keep=False``.
        fit: Whether decisions are based on a sample of the data set, as above.
        state: A position that the method `state` returned, to continue from there.

    Attributes:
        batched: The batched function.
        batch_size: Instances per minibatch.

    Raises:
        LoaderError: A setting is out of range or of the wrong type, there is no
            instance, the state belongs to another run, or something cannot be sent to
            workers.
        EdbatchError: As for `edbatch.Batched.record`; a note names the instance.

    Example:
        >>> import edbatch as eb
        >>> import jax.numpy as jnp
        >>> @eb.cell
        ... def start(params):
        ...     return jnp.zeros_like(params)
        >>> @eb.cell
        ... def add(params, x, y):
        ...     return params * (x + y)
        >>> def total(params, numbers):
        ...     result = start(params)
        ...     for each in numbers:
        ...         result = add(params, result, each)
        ...     return result
        >>> params = jnp.float32(1.0)
        >>> batched = eb.batch(total, params=params)
        >>> data = [[1.0, 2.0], [3.0], [4.0, 5.0, 6.0]]
        >>> loader = eb.Loader(batched, data, 2, shuffle=False)
        >>> for item in loader:
        ...     print(item.index.tolist(), batched.apply(params, item.plan).tolist())
        [0, 1] [3.0, 3.0]
        [2] [15.0, 0.0]
    """

    def __init__(
        self,
        batched: BatchedFunction,
        instances: Iterable[Any],
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        group_by_size: bool = False,
        drop_last: bool = False,
        pad: bool = True,
        prefetch: int = 2,
        threads: int = 1,
        workers: int = 0,
        keep: bool = True,
        transform: Transform | None = None,
        fit: bool = False,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        _check_function(batched)
        data = data_set(instances)
        _check_flags(
            shuffle=shuffle,
            group_by_size=group_by_size,
            drop_last=drop_last,
            pad=pad,
            keep=keep,
            fit=fit,
        )
        self.batched = batched
        self.batch_size = _count("batch_size", batch_size, 1)
        self._pad_to = self.batch_size if pad else None
        self._prefetch = _count("prefetch", prefetch, 0)
        self._threads = _count("threads", threads, 1)
        workers = _count("workers", workers, 0)
        seed = _count("seed", seed, 0)
        _check_instances(len(data), self.batch_size, drop_last)
        check_transform(transform)
        self._settings = Settings(x64_enabled())
        self._data: KeptInstances | FreshInstances
        if keep:
            _check_kept(transform)
            self._data = KeptInstances(batched, data, workers)
        else:
            _check_fresh(group_by_size, workers, self._prefetch)
            self._data = FreshInstances(batched, data, transform, seed, workers)
        if fit:
            sample = evenly_spaced(len(data), self.batch_size)
            batched.fit(self._data.recordings(sample, 0, None))
        self._clock = WaitClock()
        self._loop = object()  # the loop that may hand out minibatches
        self._state = LoaderState(
            epoch=0,
            step=0,
            seed=seed,
            batch_size=self.batch_size,
            shuffle=bool(shuffle),
            group_by_size=bool(group_by_size),
            drop_last=bool(drop_last),
            instances=len(data),
            data=self._data.digest(),
        )
        if state is not None:
            self.restore(state)

    def __repr__(self) -> str:
        """Returns a one-line summary."""
        name, count = name_of(self.batched.model), self._state.instances
        return f"<Loader for {name}: {count} instances, {self.batch_size} a minibatch>"

    def __len__(self) -> int:
        """Number of minibatches per epoch."""
        full, rest = divmod(self._state.instances, self.batch_size)
        return full if self._state.drop_last else full + bool(rest)

    def __iter__(self) -> Iterator[Minibatch]:
        """Yields the minibatches of an epoch, or the rest of one."""
        return self.epochs(1)

    def epochs(self, count: int | None = None) -> Iterator[Minibatch]:
        """Yields the minibatches of several epochs; plans ahead across their borders.

        Args:
            count: Number of epochs; the rest of an epoch already begun counts as one.
                None for no end.

        Yields:
            The minibatches. When one is yielded, `state` already returns the position
            after it.

        Raises:
            LoaderError: The count is negative; or another loop over this loader began,
                its state was restored, or it was closed, while this one ran.
            EdbatchError: A minibatch cannot be planned; a note names the instance.
        """
        until = None
        if count is not None:
            until = self._state.epoch + _count("count", count, 0)
        loop = self._loop = object()
        self._clock.begin()
        self._settings = self._settings.here()
        ahead = self._prefetch * max(self._data.workers, 1)
        tasks = self._tasks(until)
        # Closed explicitly, so that a loop that is left early leaves no threads behind.
        with closing(
            map_ahead(self._plan, tasks, ahead, self._threads, self._data.begin())
        ) as items:
            for k in itertools.count():
                self._clock.ask()
                item = next(items, None)
                if item is None:
                    return
                self._clock.hand_out()
                notice = getattr(self.batched, "device_notice", None)
                if k == 0 and notice is not None:
                    notice.tell(item.plan)
                self._advance(item)
                yield item
                self._check_loop(loop)

    def close(self) -> None:
        """Ends the worker processes, if there are any; a later loop starts new ones."""
        self._loop = object()
        self._data.close()

    def __enter__(self) -> Self:
        """Returns the loader."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Closes the loader."""
        self.close()

    @property
    def epoch(self) -> int:
        """Epoch of the next minibatch, from 0."""
        return self._state.epoch

    @property
    def report(self) -> LoaderReport:
        """Times that the loops over this loader waited for plans."""
        return self._clock.report

    @property
    def wait_ms(self) -> float:
        """Milliseconds that loops waited for plans, except each loop's first plan."""
        return self.report.wait_ms

    def state(self) -> dict[str, Any]:
        """Returns the position after the last yielded minibatch.

        Returns:
            Numbers and strings, for JSON: the position, the settings, and a digest of
            the data; with ``keep=False`` there is no digest.
        """
        return asdict(self._state)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Moves to a saved position; the minibatch there is the next one.

        Args:
            state: A result of `state`, from this run or another one with the same data
                and settings.

        Raises:
            LoaderError: The state belongs to other data or settings.
        """
        self._state = self._state.resumed(state, len(self))
        self._loop = object()

    def _tasks(self, until: int | None) -> Iterator[_Task]:
        start = self._state
        epoch, step = start.epoch, start.step
        while until is None or epoch < until:
            order = epoch_order(
                start.instances,
                start.batch_size,
                seed=start.seed,
                epoch=epoch,
                shuffle=start.shuffle,
                sizes=self._data.sizes if start.group_by_size else None,
                drop_last=start.drop_last,
            )
            for k in range(step, len(order)):
                yield _Task(epoch, k, order[k], self._data.ask(order[k], epoch))
            epoch, step = epoch + 1, 0

    def _plan(self, task: _Task) -> Minibatch:
        """Plans a minibatch with the loop's JAX settings, which are thread-local."""
        with self._settings.hold():
            return self._plan_task(task)

    def _plan_task(self, task: _Task) -> Minibatch:
        epoch, step, index, ticket = task
        what = f"minibatch {step} of epoch {epoch}"
        try:
            chosen = self._data.recordings(index, epoch, ticket)
        except Stopped:
            raise
        except Exception as error:
            error.add_note(f"for {what}")
            raise
        try:
            plan = self.batched.plan(chosen, pad_to=self._pad_to)
        except MemoryError as error:
            padded = "" if self._pad_to is None else f", padded to {self._pad_to}"
            error.add_note(f"while planning {what}, of {len(index)} instances{padded}")
            raise
        except Exception as error:
            error.add_note(f"while planning {what}: {self._blame(index, epoch)}")
            raise
        return Minibatch(send(plan), index, epoch, step)

    def _blame(self, index: np.ndarray, epoch: int) -> str:
        for k in index.tolist():
            try:
                self.batched.plan(self._data.recordings(np.array([k]), epoch, None))
            except Exception:
                return f"instance {k} cannot be planned by itself either"
        return f"instances {index.tolist()}, each of which can be planned by itself"

    def _advance(self, item: Minibatch) -> None:
        epoch, step = item.epoch, item.step + 1
        if step == len(self):
            epoch, step = epoch + 1, 0
        self._state = replace(self._state, epoch=epoch, step=step)

    def _check_loop(self, loop: object) -> None:
        if self._loop is not loop:
            raise LoaderError(
                "only one loop at a time can run over a loader, but another one began,"
                " the state was restored, or the loader was closed, before this one"
                " ended; make a loader for each loop, all of the same recordings"
                " (batched.record_all)"
            )


def _check_function(batched: BatchedFunction) -> None:
    if not all(hasattr(batched, name) for name in ("record_all", "plan", "apply")):
        raise LoaderError(
            "a loader takes a function made by eb.batch or .sharded(), but this is"
            f" {shown(batched)}, of type {type(batched).__name__}; usually the model"
            " itself; write eb.Loader(eb.batch(model), instances, batch_size)"
        )


def _check_flags(**flags: bool) -> None:
    for name, flag in flags.items():
        check_flag(LoaderError, f"{name} of a loader", flag)


def _count(name: str, value: int, least: int) -> int:
    check_number(LoaderError, f"{name} of a loader", value, least, whole=True)
    return int(value)


def _check_instances(count: int, batch_size: int, drop_last: bool) -> None:
    if not count:
        raise LoaderError(
            "a loader needs at least one instance but there is none; usually an"
            " iterator that was used up before, or a filter that lets nothing pass;"
            " pass a list that is not empty"
        )
    if drop_last and count < batch_size:
        raise LoaderError(
            f"with drop_last every minibatch is full, but batch_size is {batch_size}"
            f" and there are {count} instances, so none would be left; use smaller"
            " minibatches, or keep the last one"
        )


def _check_kept(transform: Transform | None) -> None:
    if transform is not None:
        raise LoaderError(
            "a transform changes an instance each time that it is read, but this loader"
            " keeps recordings and reads each instance once; add keep=False, or change"
            " the data before"
        )


def _check_fresh(group_by_size: bool, workers: int, prefetch: int) -> None:
    if group_by_size:
        raise LoaderError(
            "group_by_size sorts by the sizes of recordings, which a loader with"
            " keep=False does not have beforehand; leave one of the two out"
        )
    if workers and not prefetch:
        raise LoaderError(
            "workers record minibatches ahead of the one in use, but prefetch is 0;"
            " leave it out, or leave workers out"
        )
