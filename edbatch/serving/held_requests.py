"""Requests that wait for a compiler, while others run.

A request whose cells are called with shapes, dtypes or static arguments that are new to
the server needs another program, and one that is too large for a wave of its own a
larger one. It is held, with all others that come meanwhile and need one, until the
background thread has compiled it; waves go on by the present program, in parts where it
has no room for all, so that nobody else waits.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

from edbatch.schedule.interrupt import is_ctrl_c
from edbatch.serving.request import Request, copy_of
from edbatch.stream.buckets import Needs, larger
from edbatch.waves.instance_run import InstanceRun
from edbatch.waves.program_maker import NextProgram
from edbatch.waves.runner import WaveRunner

log = logging.getLogger("edbatch")


class Lack(NamedTuple):
    """What a request waits for that the present program has not.

    Attributes:
        types: Types that it does not know.
        needs: Sizes, by dimension, one of which it does not have.
    """

    types: frozenset[int] = frozenset()
    needs: frozenset[tuple[str, int]] = frozenset()


class HeldRequests:
    """Requests in flight that a server's next program is compiled for.

    Args:
        runner: Runs the waves.
        fail: Ends a request with an exception.
    """

    def __init__(
        self, runner: WaveRunner, fail: Callable[[Request, BaseException], None]
    ) -> None:
        self._runner, self._fail = runner, fail
        self._lacks: dict[Request, Lack] = {}
        self._next: NextProgram | None = None
        self._next_for: list[Request] = []
        self._next_has: Needs = {}  # what waves lacked that nobody is held for
        self._told = False  # that waves run in parts
        self._apart: list[Lack] = []  # that are compiled each by themselves

    def __len__(self) -> int:
        return len(self._lacks)

    @property
    def lack_something(self) -> bool:
        """Whether a larger program is compiled, or to be."""
        return bool(self._lacks or self._runner.execution.lacking)

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

    def hold_for_room(self, request: Request, needs: Needs) -> None:
        """Takes a request that the program has no room for, in a wave of its own.

        Args:
            request: The request, which waits for values.
            needs: Sizes that it needs.
        """
        self._hold(request, Lack(needs=frozenset(needs.items())))

    def _hold(self, request: Request, lack: Lack) -> None:
        assert request.run is not None, "it was started"
        self._lacks[request] = lack
        self._runner.hold(request.run)

    def discard(self, request: Request) -> None:
        """Forgets a request that has ended.

        Args:
            request: The request, held or not.
        """
        if self._lacks.pop(request, None) is not None and request.run is not None:
            self._runner.forget(request.run)
            if not self.lack_something:  # what is compiled for them is found again
                self._next, self._next_for = None, []

    def take_ready(self) -> list[Request]:
        """Goes on: begins to compile, or takes in what is compiled.

        Requests whose program cannot be compiled fail, and no other ones. What waves
        lacked that ran in parts, is compiled alike, and these go on if it cannot be.

        Returns:
            The requests that can run now, which are held no more.
        """
        ready: list[Request] = []
        while self.lack_something:
            if self._next is None and not self._begin():
                continue
            assert self._next is not None, "it has begun"
            if not self._next.compiling.done:
                break
            ready += self._take_in()
        return ready

    def _begin(self) -> bool:
        """Begins to compile for those that wait; returns whether it has."""
        self._next_for = self._choose()
        self._next_has = needs = {} if self._apart else self._runner.execution.lacking
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
        return [*self._lacks]

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
        # Also those that came meanwhile, and need no other program.
        ready = [
            each
            for each, lack in self._lacks.items()
            if not execution.unknown_types([*lack.types])
            and execution.holds(dict(lack.needs))
        ]
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
        if self._next_has:
            self._tell(error)
            self._runner.execution.lacking = {}
        if self._next_has or len(apart) > 1:
            self._apart = [*apart]  # whose fault it is shows when each is alone
            return
        for each in own:
            self._fail(each, copy_of(error))

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
