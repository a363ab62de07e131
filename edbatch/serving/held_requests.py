"""Requests that wait for a compiler, while others run.

A request whose cells are called with shapes, dtypes or static arguments that are new to
the server needs another program, and one that is too large for a wave of its own a
larger one. It is held, with all others that come meanwhile and need one, until the
background thread has compiled it; waves go on by the present program, in parts where it
has no room for all. Others wait only where values fill the arenas: until some end and
free their rows, or the larger program is there.
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

_FIRST_WAIT_S = 5.0  # before what could not be compiled is tried again
_LONGEST_WAIT_S = 600.0

log = logging.getLogger("edbatch")


class Lack(NamedTuple):
    """What a request waits for that the present program has not.

    Attributes:
        types: Types that it does not know.
        needs: Sizes, by dimension, of which it has not all.
        fits: Whether it has room once others have ended, whose values fill the arenas.
    """

    types: frozenset[int] = frozenset()
    needs: frozenset[tuple[str, int]] = frozenset()
    fits: bool = False

    def includes(self, other: "Lack") -> bool:
        """Tells whether a program that has this has all that another one is for."""
        own = dict(self.needs)
        are_large = all(own.get(name, 0) >= size for name, size in other.needs)
        return are_large and self.types >= other.types

    @property
    def order(self) -> tuple[int, int, list[int]]:
        """Sorts lacks, small ones first."""
        return sum(size for _, size in self.needs), len(self.types), sorted(self.types)


class HeldRequests:
    """Requests in flight that a server's next program is compiled for.

    Args:
        runner: Runs the waves.
        fail: Ends a request with an exception.
        in_flight: Returns how many requests there are, held or not.
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
        self._next_lacking: Needs = {}  # what waves lacked that nobody is held for
        self._told = False  # that waves run in parts
        self._apart: list[Lack] = []  # that are compiled each by themselves
        self._rows_were_freed = False
        self._refused: BaseException | None = None  # why waves lack what they do
        self._lacking_from_s, self._wait_s = 0.0, _FIRST_WAIT_S

    def __len__(self) -> int:
        return len(self._lacks)

    @property
    def is_busy(self) -> bool:
        """Whether there is something for `take_ready` to do, or to wait for."""
        return bool(self._lacks or self._needs_program)

    @property
    def _needs_program(self) -> bool:
        """Whether a larger program is compiled, or to be."""
        own = any(not lack.fits for lack in self._lacks.values())
        return bool(self._next or own or self._lacking)

    @property
    def _lacking(self) -> Needs:
        """What waves lacked; nothing for some time after it could not be compiled."""
        is_time = time.monotonic() >= self._lacking_from_s
        return self._runner.execution.lacking if is_time else {}

    def all(self) -> list[Request]:
        """Returns the requests."""
        return [*self._lacks]

    def holds(self, request: Request) -> bool:
        """Takes a request that has just run, if it has to wait for a compiler.

        Args:
            request: The request, which waits for values.

        Returns:
            Whether it was taken.
        """
        run = request.run
        assert run is not None, "it was started"
        types = self._runner.unknown_types(run)
        if types:
            self._hold(request, Lack(types))
        return bool(types)

    def hold_for_room(self, request: Request, error: NoRoomError) -> None:
        """Takes a request that the program has no room for, in a wave of its own.

        Args:
            request: The request, which waits for values.
            error: What it needs.
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
                self._next, self._next_for = None, []  # it is found again

    def take_ready(self) -> list[Request]:
        """Goes on: begins to compile, or takes in what is compiled.

        Requests whose program cannot be compiled fail, and no other ones. What waves
        lacked that ran in parts, is compiled alike, and these go on if it cannot be.

        Returns:
            The requests that can run now, or try, which are held no more.
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
        """Begins to compile for those that wait; returns whether it has."""
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
        """Returns the requests that are compiled for next: all, unless that failed."""
        while self._apart:
            lack = self._apart[-1]
            own = [each for each, found in self._lacks.items() if found == lack]
            if own:
                return own
            self._apart.pop()
        return [each for each, lack in self._lacks.items() if not lack.fits]

    def _take_in(self) -> list[Request]:
        """Lets waves run by what is compiled; returns the requests that it was for."""
        found, self._next = self._next, None
        assert found is not None, "it has begun"
        execution = self._runner.execution
        try:
            found.compiling.wait()
            if not execution.adopt(found):
                return []
        except BaseException as error:
            if not execution.is_planned_anew(found):  # else it may be another's fault
                self._failed(error)
            return []
        finally:
            self._next_for = []
        self._wait_s, self._refused = _FIRST_WAIT_S, None
        # Also those that came meanwhile, and need no other program.
        return self._let_go(
            lambda lack: (
                not execution.unknown_types([*lack.types])
                and execution.holds(dict(lack.needs))
            )
        )

    def _let_go(self, can_run: Callable[[Lack], bool]) -> list[Request]:
        """Holds some requests no more, and returns them."""
        ready = [each for each, lack in self._lacks.items() if can_run(lack)]
        for each in ready:
            del self._lacks[each]
        self._runner.let_go(_runs_of(ready))
        return ready

    def _failed(self, error: BaseException) -> None:
        """Ends requests whose program cannot be compiled, once it is for them alone."""
        if is_ctrl_c(error):
            raise error
        own = [each for each in self._next_for if each in self._lacks]
        apart = {self._lacks[each] for each in own}
        has_lacking, self._next_lacking = bool(self._next_lacking), {}
        if has_lacking:
            self._wait_for_next(error)
        if has_lacking or len(apart) > 1:
            # Whose fault it is shows when each is alone, the smallest first.
            self._apart = sorted(apart, key=lambda each: each.order, reverse=True)
            return
        for failed in apart:
            for each, lack in [*self._lacks.items()]:
                if not lack.fits and lack.includes(failed):
                    self._fail(each, copy_of(error))

    def _wait_for_next(self, error: BaseException) -> None:
        """Lets some time pass before what waves lack is compiled again."""
        self._lacking_from_s = time.monotonic() + self._wait_s
        self._wait_s = min(2 * self._wait_s, _LONGEST_WAIT_S)
        self._refused = error
        self._tell(error)

    def _make_room(self) -> None:
        """Fails the last of all requests if none can go on, so that the others can.

        They would have room one after the other, but not with each other's values, and
        a larger program could not be compiled.
        """
        if self._refused is None or self._needs_program:
            return
        if len(self._lacks) == self._in_flight():
            last = max(self._lacks, key=lambda each: each.number)
            self._fail(last, copy_of(self._refused))

    def _tell(self, error: BaseException) -> None:
        """Says once that waves run in parts; they go on, so nobody gets the error."""
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
