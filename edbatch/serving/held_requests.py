"""Requests held until the background thread has compiled a program for them.

A request needs a new program if its cells are called with shapes, dtypes or static
arguments that are new to the server, or if it is too large even for a wave of its own.
It is held, together with all later requests that need a new program, until the
background thread has compiled one. Waves continue with the present program, split into
parts if it has no room for all requests. Other requests wait only if values fill the
arenas: until some end and free their rows, or the larger program is compiled.
"""

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from edbatch.schedule.interrupt import is_ctrl_c
from edbatch.serving.request import Request, copy_of
from edbatch.stream.buckets import Needs, larger
from edbatch.waves.instance_run import InstanceRun
from edbatch.waves.program_maker import NextProgram
from edbatch.waves.runner import WaveRunner
from edbatch.waves.wave_execution import NoRoomError

_FIRST_WAIT_S = 5.0  # delay before a failed compilation is tried again
_LONGEST_WAIT_S = 600.0

log = logging.getLogger("edbatch")


class Lack(NamedTuple):
    """What the present program lacks for a request.

    Attributes:
        types: Types that the program does not know.
        needs: Required sizes, by dimension, not all of which the program has; empty if
            only types are missing.
        fits: Whether the program has room once other requests, whose values fill the
            arenas, have ended.
    """

    types: frozenset[int] = frozenset()
    needs: frozenset[tuple[str, int]] = frozenset()
    fits: bool = False

    def includes(self, other: "Lack") -> bool:
        """Returns whether a program that satisfies this lack satisfies the other."""
        own = dict(self.needs)
        are_large = all(own.get(name, 0) >= size for name, size in other.needs)
        return are_large and self.types >= other.types

    @property
    def order(self) -> tuple[int, int, list[int]]:
        """Sort key: small lacks first."""
        return sum(size for _, size in self.needs), len(self.types), sorted(self.types)


class HeldRequests:
    """Requests in flight that are held until a server's next program is compiled.

    Args:
        runner: Runs the waves.
        fail: Fails a request with an exception.
        in_flight: Returns the number of requests, held or not.
    """

    def __init__(
        self,
        runner: WaveRunner,
        fail: Callable[[Request, BaseException], None],
        in_flight: Callable[[], int],
    ) -> None:
        self._runner, self._fail, self._in_flight = runner, fail, in_flight
        self._lacks: dict[Request, Lack] = {}
        self._next: NextProgram | None = None
        self._next_for: list[Request] = []
        self._next_lacking: Needs = {}  # sizes that waves lacked, for `_next`
        self._told = False  # whether the warning about split waves was logged
        self._apart: list[Lack] = []  # lacks that are compiled one by one
        self._rows_were_freed = False
        self._refused: BaseException | None = None  # why `_lacking` was not compiled
        self._lacking_from_s, self._wait_s = 0.0, _FIRST_WAIT_S

    def __len__(self) -> int:
        return len(self._lacks)

    @property
    def is_busy(self) -> bool:
        """Whether `take_ready` has work to do or to wait for."""
        return bool(self._lacks or self._needs_program)

    @property
    def _needs_program(self) -> bool:
        """Whether a larger program is needed or being compiled."""
        own = any(not lack.fits for lack in self._lacks.values())
        return bool(self._next or own or self._lacking)

    @property
    def _lacking(self) -> Needs:
        """Sizes that waves lacked; empty for some time after a failed compilation."""
        is_time = time.monotonic() >= self._lacking_from_s
        return self._runner.execution.lacking if is_time else {}

    def all(self) -> list[Request]:
        """Returns the held requests."""
        return [*self._lacks]

    def holds(self, request: Request) -> bool:
        """Holds a request that has just run, if it brought unknown types.

        Args:
            request: The request, which waits for values.

        Returns:
            Whether it is held.
        """
        run = request.run
        assert run is not None, "it was started"
        types = self._runner.unknown_types(run)
        if types:
            self._hold(request, Lack(types))
        return bool(types)

    def hold_for_room(self, request: Request, error: NoRoomError) -> None:
        """Holds a request that the program has no room for, even in its own wave.

        Args:
            request: The request, which waits for values.
            error: The error that states the sizes it needs.
        """
        needs = frozenset(error.needs.items())
        self._hold(request, Lack(needs=needs, fits=error.fits))

    def _hold(self, request: Request, lack: Lack) -> None:
        assert request.run is not None, "it was started"
        self._lacks[request] = lack
        self._runner.hold(request.run)

    def discard(self, request: Request) -> None:
        """Forgets a request that has ended.

        Args:
            request: The request, held or not.
        """
        self._rows_were_freed = True
        if self._lacks.pop(request, None) is not None and request.run is not None:
            self._runner.forget(request.run)
            if not (self._lacks or self._next_lacking):
                self._next, self._next_for = None, []  # created again when needed

    def take_ready(self) -> list[Request]:
        """Starts compilations, and adopts a program once it is compiled.

        Requests whose program cannot be compiled fail; no others do, unless no request
        can continue (`_make_room`). The sizes that split waves lacked are compiled the
        same way; if that fails, these waves stay split.

        Returns:
            The requests that are no longer held, to run or to try again.
        """
        ready: list[Request] = []
        if self._rows_were_freed:
            self._rows_were_freed = False
            ready += self._let_go(lambda lack: lack.fits)
        while self._needs_program:
            if self._next is None and not self._begin():
                continue
            assert self._next is not None, "it has begun"
            if not self._next.compiling.done:
                break
            ready += self._take_in()
        if self._lacks and not ready:
            self._make_room()
        return ready

    def _begin(self) -> bool:
        """Starts compiling the next program; returns whether it has started."""
        self._next_for = self._choose()
        self._next_lacking = needs = {} if self._apart else self._lacking
        types: frozenset[int] = frozenset()
        for lack in {self._lacks[each] for each in self._next_for}:
            types |= lack.types
            needs = larger(needs, dict(lack.needs))
        try:
            self._next = self._runner.prepare(_runs_of(self._next_for), types, needs)
        except BaseException as error:
            self._failed(error)
            self._next_for = []
        return self._next is not None

    def _choose(self) -> list[Request]:
        """Returns the requests to compile for; after a failure, those of one lack."""
        while self._apart:
            lack = self._apart[-1]
            own = [each for each, found in self._lacks.items() if found == lack]
            if own:
                return own
            self._apart.pop()
        return [each for each, lack in self._lacks.items() if not lack.fits]

    def _take_in(self) -> list[Request]:
        """Adopts the compiled program; returns the requests that it lets run."""
        found, self._next = self._next, None
        assert found is not None, "it has begun"
        execution = self._runner.execution
        try:
            found.compiling.wait()
            if not execution.adopt(found):
                return []
        except BaseException as error:
            if not execution.is_outdated(found):  # not if its plan is outdated
                self._failed(error)
            return []
        finally:
            self._next_for = []
        self._wait_s, self._refused = _FIRST_WAIT_S, None
        # Includes later requests that need no further program.
        return self._let_go(
            lambda lack: (
                not execution.unknown_types([*lack.types])
                and execution.holds(dict(lack.needs))
            )
        )

    def _let_go(self, can_run: Callable[[Lack], bool]) -> list[Request]:
        """Releases the held requests that can run, and returns them."""
        ready = [each for each, lack in self._lacks.items() if can_run(lack)]
        for each in ready:
            del self._lacks[each]
        self._runner.release_held(_runs_of(ready))
        return ready

    def _failed(self, error: BaseException) -> None:
        """Handles a failed compilation; if for one lack only, fails its requests."""
        if is_ctrl_c(error):
            raise error
        own = [each for each in self._next_for if each in self._lacks]
        apart = {self._lacks[each] for each in own}
        has_lacking, self._next_lacking = bool(self._next_lacking), {}
        if has_lacking:
            self._wait_for_next(error)
        if has_lacking or len(apart) > 1:
            # Compile for each lack alone, the smallest first, to find the cause.
            self._apart = sorted(apart, key=lambda each: each.order, reverse=True)
            return
        for failed in apart:
            for each, lack in [*self._lacks.items()]:
                if not lack.fits and lack.includes(failed):
                    self._fail(each, copy_of(error))

    def _wait_for_next(self, error: BaseException) -> None:
        """Delays the next compilation of the sizes that waves lack."""
        self._lacking_from_s = time.monotonic() + self._wait_s
        self._wait_s = min(2 * self._wait_s, _LONGEST_WAIT_S)
        self._refused = error
        self._tell(error)

    def _make_room(self) -> None:
        """Fails the newest request if no request can continue, so that the others can.

        Each request alone would have room, but not with the values of the others, and
        the larger program could not be compiled.
        """
        if self._refused is None or self._needs_program:
            return
        if len(self._lacks) == self._in_flight():
            last = max(self._lacks, key=lambda each: each.number)
            self._fail(last, copy_of(self._refused))

    def _tell(self, error: BaseException) -> None:
        """Logs once that waves run in parts; no request fails, so no client sees it."""
        if not self._told:
            self._told = True
            log.warning(
                "a larger program for waves was not compiled, so they run in parts by"
                " the present one: %s: %s",
                type(error).__name__,
                error,
            )


def _runs_of(requests: list[Request]) -> list[InstanceRun]:
    return [each.run for each in requests if each.run is not None]
