"""Requests that wait for a compiler, while others run.

A request whose cells are called with shapes, dtypes or static arguments that are new to
the server needs a larger program. It is held, with all others that come meanwhile and
need one, until the background thread has compiled it; waves go on by the present
program, so that nobody else waits.
"""

from collections.abc import Callable

from edbatch.schedule.interrupt import is_ctrl_c
from edbatch.serving.request import Request, copy_of
from edbatch.waves.instance_run import InstanceRun
from edbatch.waves.program_maker import NextProgram
from edbatch.waves.runner import WaveRunner

Types = frozenset[int]


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
        self._types: dict[Request, Types] = {}  # that no program knows
        self._next: NextProgram | None = None
        self._next_for: list[Request] = []
        self._apart: list[Types] = []  # that are compiled each by themselves

    def __len__(self) -> int:
        return len(self._types)

    def all(self) -> list[Request]:
        """Returns the requests."""
        return [*self._types]

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
            self._types[request] = types
            self._runner.hold(run)
        return bool(types)

    def discard(self, request: Request) -> None:
        """Forgets a request that has ended.

        Args:
            request: The request, held or not.
        """
        if self._types.pop(request, None) is not None and request.run is not None:
            self._runner.forget(request.run)
            if not self._types:  # what is compiled for them is found again
                self._next, self._next_for = None, []

    def take_ready(self) -> list[Request]:
        """Goes on: begins to compile, or takes in what is compiled.

        Requests whose program cannot be compiled fail, and no other ones.

        Returns:
            The requests that can run now, which are held no more.
        """
        ready: list[Request] = []
        while self._types:
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
        types = frozenset().union(*(self._types[each] for each in self._next_for))
        try:
            self._next = self._runner.prepare(_runs_of(self._next_for), types)
        except BaseException as error:
            self._failed(error)
            self._next_for = []
        return self._next is not None

    def _choose(self) -> list[Request]:
        """Returns the requests that are compiled for next: all, unless that failed."""
        while self._apart:
            types = self._apart[-1]
            own = [each for each, found in self._types.items() if found == types]
            if own:
                return own
            self._apart.pop()
        return [*self._types]

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
            for each, types in self._types.items()
            if not execution.unknown_types([*types])
        ]
        for each in ready:
            del self._types[each]
        self._runner.let_go(_runs_of(ready))
        return ready

    def _failed(self, error: BaseException) -> None:
        """Ends requests whose program cannot be compiled, once it is for them alone."""
        if is_ctrl_c(error):
            raise error
        own = [each for each in self._next_for if each in self._types]
        apart = {self._types[each] for each in own}
        if len(apart) > 1:  # whose fault it is shows when each is compiled for itself
            self._apart = [*apart]
            return
        for each in own:
            self._fail(each, copy_of(error))


def _runs_of(requests: list[Request]) -> list[InstanceRun]:
    return [each.run for each in requests if each.run is not None]
