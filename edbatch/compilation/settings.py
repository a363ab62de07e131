"""Two settings of the process: tiers of programs, and whether calls may compile.

They apply to all threads: the thread that serves requests is rarely the one that set
them.
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
REFINE_AFTER = 3  # the run of a coarse program that requests the fine one
READ_AFTER = 2  # if that one is in the cache: the first run has the cores to itself
# If `TieredFunction.begin` compiled the coarse program: another may replace it soon.
BEGUN_AFTER = 500


class _Settings:
    """Settings of the whole process."""

    def __init__(self) -> None:
        self._tiers: Tiers | None = None
        self.stance: Stance = "compile"

    @property
    def tiers(self) -> Tiers:
        """Tiers that programs have: as set, otherwise as the environment says."""
        return self._tiers or _tiers_of_environment()

    @tiers.setter
    def tiers(self, tiers: Tiers) -> None:
        self._tiers = tiers


class _OfThread(threading.local):
    """Settings of one thread."""

    compiles_ahead = False


_OF_THREAD = _OfThread()


@contextmanager
def compiling_ahead() -> Iterator[None]:
    """Lets this thread compile under any stance, because no call waits for it."""
    before, _OF_THREAD.compiles_ahead = _OF_THREAD.compiles_ahead, True
    try:
        yield
    finally:
        _OF_THREAD.compiles_ahead = before


def may_compile() -> bool:
    """Returns whether this thread may compile now.

    Example:
        >>> may_compile()
        True
    """
    return SETTINGS.stance == "compile" or _OF_THREAD.compiles_ahead


@functools.cache
def _tiers_of_environment() -> Tiers:
    """Reads the environment variable when needed, so that commands report errors."""
    return check_tiers(
        f"the environment variable {TIERS_VARIABLE}",
        os.environ.get(TIERS_VARIABLE) or "auto",
    )


class Restoring:
    """Context manager that undoes a setting on exit."""

    def __init__(self, restore: Callable[[], None]) -> None:
        self._restore = restore

    def __enter__(self) -> Self:
        """Keeps the setting."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Restores the previous setting."""
        self._restore()


def check_tiers(what: str, tiers: object) -> Tiers:
    """Checks a choice of tiers.

    Args:
        what: Name of the value in the error message.
        tiers: The value.

    Returns:
        The value.

    Raises:
        EdbatchError: The value is not a choice of tiers.
    """
    check_word(EdbatchError, what, tiers, TIERS)
    return cast(Tiers, tiers)


def check_environment() -> None:
    """Checks the environment variable of the tiers, unless the tiers are set.

    Raises:
        EdbatchError: The variable has an invalid value.

    Example:
        >>> check_environment()
    """
    _ = SETTINGS.tiers


def use_tiers(tiers: Tiers) -> Restoring:
    """Sets which tiers of programs run, for functions without a setting of their own.

    A plan runs in a coarse program, which compiles in a fraction of the time, or in a
    fine one, which runs fastest. Their results agree within rounding. The environment
    variable ``EDBATCH_TIERS`` sets the same for a process.

    Args:
        tiers: ``"auto"``, the default: the coarse program at once, and the fine one as
            soon as a background thread has compiled it. ``"fine"``: the fine program
            only, compiled when it is first called; runs are then reproducible to the
            bit. ``"coarse"``: the coarse program only.

    Returns:
        A context manager that restores the previous setting. The new setting takes
        effect immediately, in all threads; using the context manager is optional.

    Raises:
        EdbatchError: `tiers` or the value of the environment variable is invalid.

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
    """Makes a function run fine programs only, as measuring and verifying require."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with use_tiers("fine"):
            return function(*args, **kwargs)

    return run


def set_stance(stance: Stance) -> Restoring:
    """Sets whether a call that would have to wait for a compilation raises instead.

    A server compiles everything before it accepts requests (`TieredFunction.warm_up`,
    `Batched.warm_up`). From then on it should refuse a request of a new size rather
    than make all others wait for a compilation.

    Args:
        stance: ``"compile"``, the default: the call compiles. ``"fail_on_compile"``:
            it raises. Compilations in the background continue. The stance applies to
            direct calls, their gradients outside of compiled functions, and functions
            of `eb.jit`. Functions of `jax.jit` ignore it and compile.

    Returns:
        A context manager that restores the previous stance. The new stance takes effect
        immediately, in all threads; using the context manager is optional.

    Raises:
        EdbatchError: `stance` is invalid.

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
