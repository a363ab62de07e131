"""All exceptions of edbatch, and helpers that format their messages.

Every message states the rule, the value received, the usual cause and the fix, in
that order, in one sentence or two. `shown` formats the values in it.
"""

import difflib
import os
import pickle
import reprlib
import sys
import traceback
from collections.abc import Iterable
from types import FrameType


class EdbatchError(Exception):
    """Base class of every error that edbatch raises on purpose.

    Example:
        >>> import edbatch as eb
        >>> eb.batch(3)
        Traceback (most recent call last):
            ...
        edbatch.errors.EdbatchError: eb.batch takes a function...
    """


class ManyTypesWarning(UserWarning):
    """A model has more types than it needs, each of which is compiled separately."""


class RecordingError(EdbatchError, TypeError):
    """The model did something outside a cell that cannot be recorded.

    Example:
        >>> import edbatch as eb
        >>> double = eb.cell(lambda params, x: params * x)
        >>> eb.batch(lambda params, x: 1 + double(params, x))(2.0, [1.0])
        Traceback (most recent call last):
            ...
        edbatch.errors.RecordingError: arithmetic (radd) outside a cell...
    """


class CellError(EdbatchError, ValueError):
    """A cell cannot be traced, or was called with arguments that it does not take.

    Example:
        >>> import edbatch as eb
        >>> eb.cell("scale")
        Traceback (most recent call last):
            ...
        edbatch.errors.CellError: eb.cell marks a function as a cell...
    """


class PlanError(EdbatchError, ValueError):
    """A minibatch cannot be planned, or a plan belongs to another model.

    Example:
        >>> import edbatch as eb
        >>> eb.batch(eb.cell(lambda params, x: params * x))(2.0, [])
        Traceback (most recent call last):
            ...
        edbatch.errors.PlanError: a minibatch needs at least one...
    """


class LoaderError(EdbatchError, ValueError):
    """A loader got a setting out of range, no data, or the state of another run.

    Example:
        >>> import edbatch as eb
        >>> batched = eb.batch(eb.cell(lambda params, x: params * x), params=2.0)
        >>> eb.Loader(batched, [], 4)
        Traceback (most recent call last):
            ...
        edbatch.errors.LoaderError: a loader needs at least one...
    """


class TrainingError(EdbatchError, ValueError):
    """A training step cannot be made, or its loss or parameters are not finite."""


class ArgumentError(EdbatchError, TypeError):
    """An argument of a compiled function has a leaf that is not an array or a number.

    Example:
        >>> import edbatch as eb
        >>> triple = eb.jit(lambda x: 3 * x)
        >>> with eb.use_tiers("auto"):
        ...     triple({"x": "three"})
        Traceback (most recent call last):
            ...
        edbatch.errors.ArgumentError: <lambda> was called with 'three' at x['x'], ...
    """


class CompilationError(EdbatchError, RuntimeError):
    """A call would have to wait for a compilation, which the stance forbids.

    Also raised if a forked process is to compile a program in the background.

    Example:
        >>> import edbatch as eb
        >>> triple = eb.jit(lambda x: 3 * x)
        >>> with eb.set_stance("fail_on_compile"):
        ...     triple(1.0)
        Traceback (most recent call last):
            ...
        edbatch.errors.CompilationError: a call of <lambda> would have...
    """


class ServerError(EdbatchError, RuntimeError):
    """A server did not answer a request; base class of server errors.

    Example:
        >>> import edbatch as eb
        >>> issubclass(eb.ServerFullError, eb.ServerError)
        True
    """


class ServerFullError(ServerError):
    """The server's queue is full (`max_waiting`).

    Example:
        >>> import edbatch as eb
        >>> try:  # a server's limit is reached
        ...     raise eb.ServerFullError("busy")
        ... except eb.ServerError as error:  # ask again later, or ask another server
        ...     print(error)
        busy
    """


class ServerClosedError(ServerError):
    """The server no longer takes requests, or ended before it answered this one.

    Example:
        >>> import edbatch as eb
        >>> @eb.cell
        ... def double(params, x):
        ...     return params * x
        >>> batched = eb.batch(double, params=2.0)
        >>> server = eb.Server(batched, 2.0)
        >>> server.close()
        True
        >>> try:
        ...     server.submit_nowait(1.0)
        ... except eb.ServerClosedError:
        ...     print("closed")
        closed
    """


class DeadlineError(ServerError, TimeoutError):
    """A request was not answered in time; the rest of it did not run.

    Example:
        >>> import edbatch as eb
        >>> issubclass(eb.DeadlineError, (eb.ServerError, TimeoutError))
        True
    """


class ServiceError(EdbatchError, ValueError):
    """A model cannot be served over HTTP as its `Service` specifies.

    Example:
        >>> import edbatch as eb
        >>> issubclass(ServiceError, eb.EdbatchError)
        True
    """


class PickleError(EdbatchError, pickle.PicklingError, pickle.UnpicklingError):
    """An object cannot be pickled, or a pickle cannot be loaded in this process.

    Example:
        >>> import pickle
        >>> import edbatch as eb
        >>> cell = eb.cell(lambda params, x: params * x)
        >>> pickle.dumps(cell)
        Traceback (most recent call last):
            ...
        edbatch.errors.PickleError: a cell is pickled by the name under...
    """


class PolicyError(EdbatchError, ValueError):
    """A policy is unknown, unreadable, or made for another model.

    Example:
        >>> import edbatch as eb
        >>> eb.get_policy("gredy")
        Traceback (most recent call last):
            ...
        edbatch.errors.PolicyError: a policy is the name of a...
    """


class VerificationError(EdbatchError, AssertionError):
    """A batched result differs from the unbatched one.

    Example:
        >>> import edbatch as eb
        >>> issubclass(eb.VerificationError, AssertionError)
        True
    """


class DataError(EdbatchError, ValueError):
    """Data cannot be read, or the requested data does not exist.

    The message states the place (file, line, column), the rule, the value found, the
    usual cause and the fix.

    Example:
        >>> from edbatch.data import parse_trees
        >>> try:
        ...     parse_trees("(S (NN dog)")
        ... except DataError as error:
        ...     print(str(error).split(";")[0])
        <text>, line 1, column 12: every '(' must be closed
    """


class WorkloadError(EdbatchError, ValueError):
    """A workload or an option of it does not exist, or an option has a wrong value.

    Example:
        >>> from edbatch.models import get_workload
        >>> try:
        ...     get_workload("tree-lstn")
        ... except WorkloadError as error:
        ...     print(str(error).split("; ")[1])
        did you mean 'tree-lstm'?
    """


class BenchmarkError(EdbatchError, ValueError):
    """A benchmark cannot be run as configured.

    Example:
        >>> from edbatch.benchmark import BenchmarkConfig
        >>> try:
        ...     BenchmarkConfig(systems=("exakt",))
        ... except BenchmarkError as error:
        ...     print(str(error).split("; ")[-1])
        did you mean 'exact'?
    """


class UnsupportedError(BenchmarkError):
    """A system cannot run a workload; the message states the reason.

    Example:
        >>> str(UnsupportedError("its nodes are of 2 types"))
        'its nodes are of 2 types'
    """


class PlotError(EdbatchError, ValueError):
    """A figure cannot be drawn, for example of a comparison without rows.

    Example:
        >>> from edbatch.plot import plot_comparison
        >>> try:
        ...     plot_comparison({})
        ... except PlotError as error:
        ...     print(str(error).split(";")[0])
        a picture of a comparison needs workloads but there is none
    """


class MissingMatplotlibError(EdbatchError, ImportError):
    """Matplotlib, which draws all figures, is not installed.

    Example:
        >>> import edbatch as eb
        >>> issubclass(MissingMatplotlibError, eb.EdbatchError)
        True
    """


class MissingTensorBoardError(EdbatchError, ImportError):
    """tensorboardX, which writes event files for TensorBoard, is not installed."""


class MetricLogError(EdbatchError, ValueError):
    """Metrics cannot be written, or cannot be appended to a file.

    Example:
        >>> from edbatch.metric_log import MetricLog
        >>> try:
        ...     MetricLog("no/such/folder/metrics.csv")
        ... except MetricLogError as error:
        ...     print(str(error).split("; ")[-1])
        name a file in an existing, writable folder
    """


class MissingServeExtraError(EdbatchError, ImportError):
    """A package of the extra ``serve`` is not installed."""

    def __init__(self, package: str | None) -> None:
        super().__init__(
            f"serving over HTTP needs the package {package}, which is not installed;"
            " install all that it needs with: pip install 'edbatch[serve]'"
        )


_LISTED = 80  # characters of known names in a message
_MOST_COMPARED = 10_000


def shown(value: object, most: int = 40) -> str:
    """Formats a value for a message, abbreviated if it is long or deep.

    Args:
        value: The value.
        most: Maximum number of characters.

    Returns:
        Its `repr`, abbreviated to fit.

    Example:
        >>> shown("a word"), shown("a" * 10**6, 20)
        ("'a word'", "'aaaaaaa...aaaaaaaa'")
    """
    writer = reprlib.Repr()
    writer.maxstring = writer.maxother = most
    writer.maxlevel = 3
    try:
        text = writer.repr(value)
    except Exception:  # a number with too many digits, or a broken `__repr__`
        text = f"<{type(value).__name__}>"
    return text if len(text) <= most else text[: most - 3] + "..."


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns a hint: the known name nearest to an unknown one, or all known names.

    Args:
        name: The name that was not found.
        known: The names that exist.

    Returns:
        A clause such as ``did you mean 'greedy'?``, or a list of the names that exist.

    Example:
        >>> nearest("gredy", ["depth", "agenda", "greedy"])
        "did you mean 'greedy'?"
        >>> nearest("zzz", ["b", "a"])
        "known are 'a', 'b'"
    """
    names = sorted(set(known))
    close = difflib.get_close_matches(name[:100], names[:_MOST_COMPARED], 1, 0.5)
    if close:
        return f"did you mean {shown(close[0])}?"
    if not names:
        return "none is known"
    listed, *rest = (shown(each) for each in names[:_LISTED])
    for each in rest:
        if len(listed) + len(each) > _LISTED:
            return f"known are {listed}, ..."
        listed += f", {each}"
    return f"known are {listed}"


def is_own(frame: FrameType) -> bool:
    """Returns whether a frame runs code of edbatch, or of JAX or NumPy."""
    module = str(frame.f_globals.get("__name__", ""))
    # contextlib calls methods that are also context managers.
    return module.partition(".")[0] in ("edbatch", "jax", "numpy", "contextlib")


def user_line() -> str:
    """Returns the line of the user's code that led to an error.

    Returns:
        ``"file.py:12"``, the innermost line outside edbatch, JAX and NumPy; empty if
        there is none.

    Example:
        >>> user_line().rpartition(":")[2].isdigit()
        True
    """
    frame = _user_frame()
    if frame is None:
        return ""
    return _place(frame, frame.f_lineno)


def user_module() -> str:
    """Returns the name of the user's module that called edbatch.

    Returns:
        Its name; empty if there is none.
    """
    frame = _user_frame()
    return "" if frame is None else str(frame.f_globals.get("__name__", ""))


def _user_frame() -> FrameType | None:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if not is_own(frame):
            return frame
        frame = frame.f_back
    return None


def raising_frame(error: BaseException) -> tuple[FrameType | None, int, bool]:
    """Finds where the user's code raised an error.

    Args:
        error: An error that was caught.

    Returns:
        The innermost frame outside edbatch, JAX and NumPy, or None if there is none;
        its line; and whether it is the innermost frame of all.
    """
    frame, line, is_last = None, 0, False
    for each, number in traceback.walk_tb(error.__traceback__):
        is_last = not is_own(each)
        if is_last:
            frame, line = each, number
    return frame, line, is_last


def raising_line(error: BaseException) -> str:
    """Returns the line of the user's code in which an error was raised.

    Args:
        error: An error that was caught.

    Returns:
        As for `user_line`.
    """
    frame, line, _ = raising_frame(error)
    return "" if frame is None else _place(frame, line)


def _place(frame: FrameType, line: int) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{line}"
