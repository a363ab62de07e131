"""The loader: minibatches of recordings, planned while the device computes."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import numpy as np

from edbatch.arguments import check_flag, check_number, list_of
from edbatch.batched_function import BatchedFunction
from edbatch.errors import LoaderError, shown
from edbatch.graph.type_table import x64_enabled
from edbatch.loader.order import epoch_order
from edbatch.loader.prefetch import map_ahead
from edbatch.loader.report import LoaderReport, WaitClock
from edbatch.loader.state import LoaderState, digest
from edbatch.plan.padding import first_rows

_Task = tuple[int, int, np.ndarray]  # epoch, step, instances


@dataclass(frozen=True, eq=False)
class Minibatch:
    """A minibatch that is ready to run.

    Attributes:
        plan: Its plan, for ``batched.apply``. The result has ``N`` rows: the loader's
            ``batch_size``, if it pads.
        index: Which instances it holds, ``[B] int64``; B is less than N in the last
            minibatch of an epoch.
        epoch: Number of its epoch, from 0.
        step: Its place in the epoch, from 0.
    """

    plan: Any
    index: np.ndarray
    epoch: int
    step: int

    @property
    def mask(self) -> Any:
        """True for instances, False for rows of padding; ``[N] bool``."""
        return self.plan.instance_mask

    @property
    def padded_index(self) -> np.ndarray:
        """An instance for every row of the result; ``[N] int64``.

        ``targets[padded_index]`` are the targets of all rows; those of padding are the
        targets of the first instance, which a loss that uses `mask` ignores.
        """
        padding = self.plan.shape.result.instances - len(self.index)
        return np.concatenate([self.index, np.repeat(self.index[:1], padding)])

    def drop_padding(self, result: Any) -> Any:
        """Returns the results of the instances alone.

        Args:
            result: What ``batched.apply(params, plan)`` returned, outside of traces.

        Returns:
            The same pytree with B rows, those of `index`.
        """
        return first_rows(result, len(self.index))


class Loader:
    """Minibatches of a data set, planned in background threads.

    The constructor records every instance once. A loop over the loader is one epoch;
    the next loop is the next epoch, in a new order. `epochs` gives several without a
    pause between them. Which instances come when follows from the data, the seed and
    the settings alone, whatever the threads do. A loop that was left goes on where it
    stopped; its threads end with it.

    A last minibatch that is not full is padded to ``batch_size`` instances, so that it
    needs no program of its own: a loss has to leave out its rows of padding, as in
    ``jnp.mean(losses, where=plan.instance_mask)``, and takes the targets of
    `Minibatch.padded_index`. Lists of padding are empty, so what is computed over the
    elements of a `Ragged` needs nothing. With ``pad=False`` (or without a last
    minibatch, ``drop_last=True``) there are no such rows.

    With one worker the plans, too, are the same in every run, unless a search within
    milliseconds makes them. With several, those of new sizes may be padded differently
    from run to run, which changes no result beyond rounding.

    Args:
        batched: The batched function; the shapes of its parameters are known to it
            (``params=`` of `edbatch.batch`, or ``bind``).
        instances: Instances, or recordings of them by this function.
        batch_size: Instances per minibatch.
        seed: Seed of the order.
        shuffle: Whether the order is random.
        group_by_size: Whether a minibatch holds instances with similar numbers of
            nodes, see `edbatch.loader.epoch_order`.
        drop_last: Whether to leave out a last minibatch that is not full.
        pad: Whether to pad it.
        prefetch: Minibatches planned ahead of the one in use; 0 for none, and no
            threads.
        workers: Number of threads.
        state: What `state` gave in an earlier run, to go on from there.

    Attributes:
        batched: The batched function.
        batch_size: Instances per minibatch.

    Raises:
        LoaderError: A setting is out of range or of another type, there is no
            instance, or the state is of another run.
        EdbatchError: As for `edbatch.Batched.record`; a note names the instance.

    Example:
        >>> import edbatch as eb
        >>> import jax.numpy as jnp
        >>> @eb.cell
        ... def add(params, x, y):
        ...     return params * (x + y)
        >>> def total(params, numbers):
        ...     result = add(params, 0.0, 0.0)
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
        workers: int = 1,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        if not all(hasattr(batched, name) for name in ("record_all", "plan", "apply")):
            raise LoaderError(
                "the function of a loader is what eb.batch, or its .sharded(),"
                f" returned, but this is {shown(batched)}, of type"
                f" {type(batched).__name__}; usually the model itself; write"
                " eb.Loader(eb.batch(model), instances, batch_size)"
            )
        instances = list_of(LoaderError, "the data of a loader", instances)
        for name, flag in (
            ("shuffle", shuffle),
            ("group_by_size", group_by_size),
            ("drop_last", drop_last),
            ("pad", pad),
        ):
            check_flag(LoaderError, f"{name} of a loader", flag)
        self.batched = batched
        self.batch_size = _count("batch_size", batch_size, 1)
        self._pad_to = self.batch_size if pad else None
        self._prefetch = _count("prefetch", prefetch, 0)
        self._workers = _count("workers", workers, 1)
        seed = _count("seed", seed, 0)
        _check_instances(len(instances), self.batch_size, drop_last)
        self._x64 = x64_enabled()
        self._recordings = batched.record_all(instances)
        self._sizes = np.array([each.num_nodes for each in self._recordings])
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
            instances=len(instances),
            data=digest(self._recordings),
        )
        if state is not None:
            self.restore(state)

    def __len__(self) -> int:
        """Minibatches per epoch."""
        full, rest = divmod(self._state.instances, self.batch_size)
        return full if self._state.drop_last else full + bool(rest)

    def __iter__(self) -> Iterator[Minibatch]:
        """Yields the minibatches of an epoch, or the rest of one."""
        return self.epochs(1)

    def epochs(self, count: int | None = None) -> Iterator[Minibatch]:
        """Yields the minibatches of several epochs, planned across their borders.

        Args:
            count: How many epochs; one that was begun counts as one. None for no end.

        Yields:
            The minibatches. When one is handed out, `state` is already behind it.

        Raises:
            LoaderError: The count is negative; or another loop over this loader began,
                or its state was restored, while this one ran.
            EdbatchError: A minibatch cannot be planned; a note names the instance.
        """
        until = None
        if count is not None:
            until = self._state.epoch + _count("count", count, 0)
        loop = self._loop = object()
        self._clock.begin()
        tasks = self._tasks(until)
        # Closing, so that a loop that is left does not leave threads behind.
        with closing(
            map_ahead(self._plan, tasks, self._prefetch, self._workers)
        ) as items:
            while True:
                self._clock.ask()
                item = next(items, None)
                if item is None:
                    return
                self._clock.hand_out()
                self._advance(item)
                yield item
                self._check_loop(loop)

    @property
    def epoch(self) -> int:
        """Epoch of the next minibatch, from 0."""
        return self._state.epoch

    @property
    def report(self) -> LoaderReport:
        """How long the loops over this loader waited for plans."""
        return self._clock.report

    @property
    def wait_ms(self) -> float:
        """Milliseconds that the loops waited for plans, their first ones aside."""
        return self.report.wait_ms

    def state(self) -> dict[str, Any]:
        """Returns the position behind the last minibatch handed out.

        Returns:
            Numbers and strings, for JSON: the position, and the settings and a digest
            of the data that it belongs to.
        """
        return asdict(self._state)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes to a position, whose minibatch is the next one.

        Args:
            state: What `state` gave, in this run or in another of the same data and
                settings.

        Raises:
            LoaderError: The state is of other data or settings.
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
                sizes=self._sizes if start.group_by_size else None,
                drop_last=start.drop_last,
            )
            for k in range(step, len(order)):
                yield epoch, k, order[k]
            epoch, step = epoch + 1, 0

    def _plan(self, task: _Task) -> Minibatch:
        """Runs in the threads, where a context of jax.enable_x64 does not hold."""
        with jax.enable_x64(self._x64):
            return self._plan_task(task)

    def _plan_task(self, task: _Task) -> Minibatch:
        epoch, step, index = task
        chosen = [self._recordings[k] for k in index.tolist()]
        try:
            plan = self.batched.plan(chosen, pad_to=self._pad_to)
        except Exception as error:
            error.add_note(
                f"while planning minibatch {step} of epoch {epoch}:"
                f" {self._blame(index)}"
            )
            raise
        return Minibatch(plan, index, epoch, step)

    def _blame(self, index: np.ndarray) -> str:
        for k in index.tolist():
            try:
                self.batched.plan([self._recordings[k]])
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
                "one loop at a time runs over a loader, but another one began, or the"
                " state was restored, before this one ended; make a loader for each"
                " loop, all of the same recordings (batched.record_all)"
            )


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
