"""Two settings of the process: which tiers programs have, and whether one may compile.

They hold for all threads: what serves requests is rarely the thread that set them.
"""

import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Literal, ParamSpec, Self, TypeVar, cast, get_args

from edbatch.arguments import check_word
from edbatch.errors import EdbatchError

Tiers = Literal["auto", "fine", "coarse"]
Stance = Literal["compile", "fail_on_compile"]

P = ParamSpec("P")
R = TypeVar("R")

TIERS = get_args(Tiers)
STANCES = get_args(Stance)

TIERS_VARIABLE = "EDBATCH_TIERS"
REFINE_AFTER = 3  # coarse runs of a program before its fine one is compiled
READ_AFTER = 2  # before it is read, so that the first run has the cores to itself
# Of one that was begun in the background, as others may be that take its place soon.
BEGUN_AFTER = 500


class _Settings:
    """Settings of the whole process."""

    def __init__(self) -> None:
        self._tiers: Tiers | None = None
        self.stance: Stance = "compile"

    @property
    def tiers(self) -> Tiers:
        """Which tiers programs have: as it was set, else as the environment says."""
        return self._tiers or _tiers_of_environment()

    @tiers.setter
    def tiers(self, tiers: Tiers) -> None:
        self._tiers = tiers


class _OfThread(threading.local):
    """What holds for one thread."""

    compiles_ahead = False


_OF_THREAD = _OfThread()


@contextmanager
def compiling_ahead() -> Iterator[None]:
    """Lets this thread compile, whatever the stance: no call waits for it."""
    before, _OF_THREAD.compiles_ahead = _OF_THREAD.compiles_ahead, True
    try:
        yield
    finally:
        _OF_THREAD.compiles_ahead = before


def may_compile() -> bool:
    """Whether what this thread runs now may compile.

    Example:
        >>> may_compile()
        True
    """
    return SETTINGS.stance == "compile" or _OF_THREAD.compiles_ahead


@functools.cache
def _tiers_of_environment() -> Tiers:
    """Reads the environment variable; not at import, where no command could tell."""
    return check_tiers(
        f"the environment variable {TIERS_VARIABLE}",
        os.environ.get(TIERS_VARIABLE) or "auto",
    )


class Restoring:
    """A setting that was made; as a context manager it is undone at the end."""

    def __init__(self, restore: Callable[[], None]) -> None:
        self._restore = restore

    def __enter__(self) -> Self:
        """Leaves the setting as it was made."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Restores what was set before."""
        self._restore()


def check_tiers(what: str, tiers: object) -> Tiers:
    """Checks the name of a choice of tiers.

    Args:
        what: What the value is, for the message.
        tiers: The value.

    Returns:
        The value.

    Raises:
        EdbatchError: It is none of them.
    """
    check_word(EdbatchError, what, tiers, TIERS)
    return cast(Tiers, tiers)


def check_environment() -> None:
    """Checks what the environment says about these settings, where it has a say.

    Raises:
        EdbatchError: A variable has a value that it cannot have.

    Example:
        >>> check_environment()
    """
    _ = SETTINGS.tiers


def use_tiers(tiers: Tiers) -> Restoring:
    """Sets which tiers of programs run, for functions that do not say so themselves.

    A plan runs by a coarse program, which compiles in a fraction of the time, or by a
    fine one, which runs fastest. Their results agree within rounding. The environment
    variable ``EDBATCH_TIERS`` sets the same for a process.

    Args:
        tiers: ``"auto"``, the default: the coarse program at once, and the fine one as
            soon as a background thread has compiled it. ``"fine"``: the fine program
            only, compiled when it is first called; runs are then reproducible to the
            bit. ``"coarse"``: the coarse program only.

    Returns:
        A context manager that restores what was set before; the setting holds at once,
        in all threads, and need not be restored.

    Raises:
        EdbatchError: There are no such tiers, or those of the variable.

    Example:
        >>> import edbatch as eb
        >>> with eb.use_tiers("fine"):
        ...     pass
        >>> eb.use_tiers("best")
        Traceback (most recent call last):
        edbatch.errors.EdbatchError: tiers is ...
    """
    before, SETTINGS.tiers = SETTINGS.tiers, check_tiers("tiers", tiers)

    def restore() -> None:
        SETTINGS.tiers = before

    return Restoring(restore)


def fine_only(function: Callable[P, R]) -> Callable[P, R]:
    """Makes a function run fine programs only, as what measures or verifies has to."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with use_tiers("fine"):
            return function(*args, **kwargs)

    return run


def set_stance(stance: Stance) -> Restoring:
    """Sets what a call does that would have to wait for a compilation.

    A server compiles everything before it opens (`TieredFunction.warm_up`,
    `Batched.warm_up`), and then would rather refuse a request of a new size than let
    all others wait for it.

    Args:
        stance: ``"compile"``, the default, or ``"fail_on_compile"``: the call raises.
            What compiles in the background goes on. It holds for direct calls, their
            gradients outside of compiled functions, and functions of `eb.jit`; those of
            `jax.jit` know nothing of it and compile.

    Returns:
        A context manager that restores what was set before; the stance holds at once,
        in all threads, and need not be restored.

    Raises:
        EdbatchError: There is no such stance.

    Example:
        >>> import edbatch as eb
        >>> with eb.set_stance("fail_on_compile"):
        ...     eb.jit(lambda x: 2 * x)(1.0)
        Traceback (most recent call last):
        edbatch.errors.CompilationError: ...
    """
    check_word(EdbatchError, "the stance", stance, STANCES)
    before, SETTINGS.stance = SETTINGS.stance, stance

    def restore() -> None:
        SETTINGS.stance = before

    return Restoring(restore)


SETTINGS = _Settings()
