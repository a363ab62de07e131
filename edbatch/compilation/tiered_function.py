"""Compiled functions of plans: a coarse program at once, a fine one later.

Closest relative: PyTorch's Inductor, which runs eagerly while it compiles in the
background. Here both programs are compiled, and read the same plan: its tier is a
static compile option, not part of its data.

All programs run through functions of `jax.jit`, whose caches the background thread
fills. So donation, static arguments, shardings and errors are JAX's own.
"""

import functools
import logging
import sys
import threading
from collections.abc import Callable
from types import MethodType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from edbatch.cell.jaxpr import is_staging, is_tracing
from edbatch.compilation.function_compiler import FunctionCompiler
from edbatch.compilation.jax_settings import check_under, under
from edbatch.compilation.kept_fine import is_large, is_noted, note_name
from edbatch.compilation.memory_regions import make_room, register
from edbatch.compilation.program import Programs
from edbatch.compilation.record import Compilation
from edbatch.compilation.report import compile_report
from edbatch.compilation.settings import (
    BEGUN_AFTER,
    READ_AFTER,
    REFINE_AFTER,
    SETTINGS,
    Tiers,
    may_compile,
)
from edbatch.compilation.signature import (
    Avals,
    Key,
    StaticArguments,
    abstract_arguments,
    call_key,
    check_arguments,
    check_hashable,
    describe,
    difference,
    name_of,
)
from edbatch.compilation.tier import has_other_tier, names_coarse
from edbatch.compilation.worker import WORKER, Pending, Work
from edbatch.errors import CompilationError, PickleError, shown

log = logging.getLogger("edbatch")

_DISABLED = "jax_disable_jit"
_ADVICE = (
    "call its .warm_up with these arguments, or batched.warm_up with instances like"
    " these"
)


def is_disabled() -> bool:
    """Returns whether ``jax.disable_jit`` is on, so that nothing is compiled."""
    found: bool = getattr(jax.config, _DISABLED)
    return found


class TieredFunction:
    """A compiled function of plans; made by `eb.jit`, which describes its arguments.

    Inside a trace (``jit``, ``grad``, ``vmap`` of other functions) it is inlined as a
    function of `jax.jit` is, and the tiers of plans are not changed.

    Args:
        function: The function.
        static: Which arguments are static.
        options: Other options of `jax.jit`.
        tiers: Which tiers run; None for those of `use_tiers`.
        name: Its name in reports.
        inlined: Whether a trace for compilation contains the function's operations
            instead of a jit call. Inside a jit call, JAX traces a function with a
            custom derivative rule twice: without the rule and with it.
        keeps_coarse: Whether coarse programs stay when fine ones replace them.
        reads_variables: Whether the function is user code, which may read variables
            that change; the fine program is compiled only if they have not changed.
        advice: What the user can do if `set_stance` forbids compiling, for the error.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        static: StaticArguments | None = None,
        options: dict[str, Any] | None = None,
        tiers: Tiers | None = None,
        name: str | None = None,
        *,
        inlined: bool = False,
        keeps_coarse: bool = False,
        reads_variables: bool = False,
        advice: str = _ADVICE,
    ) -> None:
        self._function = function
        self._static = static or StaticArguments()
        self._tiers = tiers
        self._name = name or name_of(function)
        self._inlined = inlined
        self._keeps_coarse = keeps_coarse
        self._advice = advice
        options = {
            "static_argnums": self._static.numbers or None,
            "static_argnames": self._static.names or None,
            **(options or {}),
        }
        self._compiler = FunctionCompiler(
            function, options, self._name, reads_variables=reads_variables
        )
        self._programs: dict[Key, Programs] = {}
        self._avals: Avals = {}  # of the signatures
        self._lock = threading.Lock()
        functools.update_wrapper(self, function)
        register(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the fine program if it is compiled, otherwise the coarse one."""
        if is_disabled():
            args, kwargs = jax.tree.map(_as_array, (args, kwargs))
        if is_tracing() or is_disabled():
            inlined = self._inlined and is_staging()
            function = self._function if inlined else self._compiler.inlined()
            return function(*args, **kwargs)
        programs = self._find(args, kwargs)
        while (fine := programs.fine) is None:
            coarse = programs.coarse
            if coarse is None or (self._tiers or SETTINGS.tiers) == "fine":
                self._compile_first(programs, args, kwargs)
                continue
            programs.runs.coarse += 1
            if programs.may_refine:
                self._maybe_refine(programs)
            return coarse(*args, **kwargs)
        if programs.only_coarse:
            programs.runs.coarse += 1
        else:
            programs.runs.fine += 1
        return fine(*args, **kwargs)

    def warm_up(self, *args: Any, **kwargs: Any) -> None:
        """Compiles the program of a call without making the call.

        Meanwhile, calls of other threads run a coarse program. If the background thread
        is already compiling the program, this waits for it.

        Args:
            *args: Positional arguments of the call, or ``jax.ShapeDtypeStruct`` in
                place of their arrays. Nothing is donated.
            **kwargs: Keyword arguments, likewise.

        Raises:
            Exception: Raised while tracing the function.
            CompilationError: It reads a variable that has changed since its first call.

        Example:
            >>> import edbatch as eb
            >>> double = eb.jit(lambda x: 2 * x)
            >>> double.warm_up(1.0)
            >>> with eb.set_stance("fail_on_compile"):
            ...     double(3.0).item()
            6.0
        """
        programs = self._find(args, kwargs)
        with programs.lock:
            if self._is_ready(programs):
                return
            before = pending = programs.refining
            own = None
            if pending is None or pending.done:  # an earlier attempt failed
                own = Work(
                    functools.partial(self._compile_ahead, programs, background=False)
                )
                pending = programs.refining = Pending(1, [own])
        try:
            if own is not None:
                own.run()
            pending.wait()
        finally:
            if own is not None and not self._is_ready(programs):
                programs.refining = before

    def warm_up_in_background(self, *args: Any, **kwargs: Any) -> Pending:
        """Like `warm_up`, in the background; meanwhile, calls run a coarse program.

        Args:
            *args: As for `warm_up`.
            **kwargs: As for `warm_up`.

        Returns:
            A handle with ``done`` and ``wait()``, which raises the error of a failed
            compilation.
        """
        programs = self._find(args, kwargs)
        with programs.lock:
            pending = programs.refining
            if pending is None or (pending.done and not self._is_ready(programs)):
                pending = programs.refining = self._submit(programs)
            return pending

    def begin(self, *args: Any, **kwargs: Any) -> None:
        """Compiles the program that a first call would wait for.

        Call it in the background thread only.

        Args:
            *args: As for `warm_up`.
            **kwargs: As for `warm_up`.

        Raises:
            Exception: Raised while tracing the function.
            CompilationError: `set_stance` forbids compiling.
        """
        programs = self._find(args, kwargs)
        tiers = self._tiers_of(programs)
        if programs.is_fine or (programs.coarse is not None and tiers != "fine"):
            return
        self._check_stance(programs)
        if tiers == "fine":
            self._begin_fine(programs)
            return
        args, kwargs = self._abstract(programs)
        with programs.lock:
            if programs.coarse is None and not programs.is_fine:
                self._compile_coarse(programs, args, kwargs, background=True)
                if programs.refine_after == REFINE_AFTER:
                    programs.refine_after = BEGUN_AFTER

    def _begin_fine(self, programs: Programs) -> None:
        """Compiles a fine program; calls made meanwhile wait for it."""
        own = Work(functools.partial(self._compile_ahead, programs, background=True))
        with programs.lock:
            if programs.refining is None or programs.refining.done:
                programs.refining = Pending(1, [own])
        own.run()
        if own.error is not None:
            raise own.error

    def missing(self, *args: Any, **kwargs: Any) -> Programs | None:
        """Returns the programs of a call unless the final one is compiled.

        The final program is the fine one, or the coarse one if the tiers setting is
        ``"coarse"``.

        Args:
            *args: Positional arguments of the call.
            **kwargs: Keyword arguments of the call.

        Returns:
            The programs of its signature; None if the final one is compiled.
        """
        programs = self._find(args, kwargs)
        return None if self._is_ready(programs) else programs

    def ready(self, *args: Any, **kwargs: Any) -> Callable[..., Any] | None:
        """Returns the fine program of a call; None if it is not compiled.

        Callers that repeat a call many times save the lookup.

        Args:
            *args: Positional arguments of the call.
            **kwargs: Keyword arguments of the call.

        Returns:
            A function for arguments of the same shapes; its runs are not counted.
        """
        found: Callable[..., Any] | None = self._find(args, kwargs).fine
        return found

    def compilations(self) -> tuple[Compilation, ...]:
        """Returns the records of this function's compilations, in order.

        Example:
            >>> import edbatch as eb
            >>> double = eb.jit(lambda x: 2 * x)
            >>> double(1.0).item(), len(double.compilations())
            (2.0, 1)
        """
        with self._lock:
            own = {id(each.runs) for each in self._programs.values()}
        return tuple(each for each in compile_report() if id(each.programs) in own)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Lowers the fine program, as ``jax.jit(function).lower`` does.

        Args:
            *args: Positional arguments of the call.
            **kwargs: Keyword arguments of the call.

        Returns:
            The lowered program.
        """
        return self._compiler.fine(args, kwargs).lower(*args, **kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """Traces the fine program, as ``jax.jit(function).trace`` does.

        Args:
            *args: Positional arguments of the call.
            **kwargs: Keyword arguments of the call.

        Returns:
            The traced program.
        """
        return self._compiler.fine(args, kwargs).trace(*args, **kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the shapes of the results, as ``jax.jit(function).eval_shape`` does.

        Args:
            *args: Positional arguments of the call.
            **kwargs: Keyword arguments of the call.

        Returns:
            A pytree of ``jax.ShapeDtypeStruct``.
        """
        return self._compiler.inlined().eval_shape(*args, **kwargs)

    def clear_cache(self) -> None:
        """Drops all programs."""
        with self._lock:
            self._programs.clear()
            self._avals.clear()
        self._compiler.clear_cache()

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Binds the function as a method."""
        return self if instance is None else MethodType(self, instance)

    def __copy__(self) -> "TieredFunction":
        """Returns the function itself: copies share its programs."""
        return self

    def __deepcopy__(self, memo: Any) -> "TieredFunction":
        """Returns the function itself: copies share its programs."""
        return self

    def __reduce__(self) -> str:
        """Pickles the function by its name, as Python pickles functions."""
        module = sys.modules.get(getattr(self, "__module__", ""))
        if getattr(module, self._name, None) is not self:
            raise PickleError(
                "a function of eb.jit is pickled by its name, since its programs are of"
                f" this process, but {self._name!r} is not its name in its module;"
                " decorate a function at the top level of a module with @eb.jit, or"
                " pickle the function itself and call eb.jit in the other process"
            )
        return self._name

    def __repr__(self) -> str:
        """Returns a text with the function's name."""
        return f"<eb.jit of {self._name}>"

    def _find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Programs:
        """Returns the programs of a call's signature, which may not be compiled."""
        key = call_key(*self._static.split(args, kwargs), self._avals)
        try:
            found = self._programs.get(key)
        except TypeError:
            check_hashable(self._function, args, kwargs, self._static)
            raise
        return found if found is not None else self._add(key, args, kwargs)

    def _add(self, key: Key, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Programs:
        check_arguments(self._function, args, kwargs, self._static, key)
        text = describe(self._function, args, kwargs, self._static)
        make_room(self._name, len(self._programs))
        with self._lock:
            known = [each.text for each in self._programs.values()]
            reason, only_coarse = difference(text, known), names_coarse((args, kwargs))
            made = Programs(key, text, reason, only_coarse=only_coarse)
            return self._programs.setdefault(key, made)

    def _is_ready(self, programs: Programs) -> bool:
        """Whether the final program of a signature is compiled."""
        if programs.is_fine:
            return True
        return programs.coarse is not None and self._tiers_of(programs) == "coarse"

    def _tiers_of(self, programs: Programs) -> Tiers:
        """Decides the tiers of a signature; "fine" if both programs would be equal."""
        tiers = self._tiers or SETTINGS.tiers
        # Processes of one job have to run the same program at the same time.
        if tiers != "fine" and jax.process_count() == 1:
            arguments = abstract_arguments(programs.key)
            if has_other_tier(arguments, "coarse"):
                return tiers
        return "fine"

    def _compile_first(
        self, programs: Programs, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Compiles the program that a call waits for."""
        with programs.lock:
            tiers = self._tiers_of(programs)
            if programs.coarse is not None and tiers != "fine":
                return
            if tiers == "fine":
                self._compile_fine(programs, args, kwargs)
            elif not programs.is_fine:
                self._check_stance(programs)
                self._compile_coarse(programs, args, kwargs)

    def _compile_fine(
        self, programs: Programs, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Compiles the fine program for a call. The caller holds the programs' lock."""
        ahead, withdrawn = programs.refining, False
        if ahead is not None:
            # In the queue it would wait for the programs of other functions.
            withdrawn = WORKER.withdraw(ahead)
            if not withdrawn:
                ahead.settle()
        error: BaseException | None = None
        try:
            if not programs.is_fine:
                self._check_stance(programs)
                fine, _, _ = self._compiler.compile(
                    programs, "fine", args, kwargs, remembers=False
                )
                programs.fine, programs.coarse = fine, None
                programs.first_trace = None
        except BaseException as raised:
            error = raised
            raise
        finally:
            if ahead is not None and withdrawn:
                ahead.works[0].abandon(error)

    def _compile_coarse(
        self,
        programs: Programs,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        background: bool = False,
    ) -> None:
        """Compiles a coarse program, unless the fine one can be read quickly.

        The caller holds the programs' lock.
        """
        is_auto = self._tiers_of(programs) == "auto"
        reads_later = is_auto and self._reads_fine_later(programs)
        if is_auto and not reads_later:
            stored = self._compiler.find_stored_fine(programs, args, kwargs)
            if stored is not None:
                programs.fine = stored
                return
        coarse, record, first = self._compiler.compile(
            programs, "coarse", args, kwargs, background=background
        )
        if reads_later and record.from_cache:
            programs.refine_after = READ_AFTER
        if programs.is_fine:  # a concurrent warm-up finished first
            return
        programs.first_trace, programs.coarse = first, coarse

    def _reads_fine_later(self, programs: Programs) -> bool:
        """Whether both tiers are in the cache, and the fine one takes long to read."""
        coarse = note_name(self._name, programs.text, "coarse")
        return is_noted(coarse) and is_large(note_name(self._name, programs.text))

    def _compile_ahead(self, programs: Programs, *, background: bool) -> None:
        """Compiles the final program of a signature."""
        if self._is_ready(programs):
            programs.ended_coarse = not programs.is_fine
            return
        args, kwargs = self._abstract(programs)
        with under(programs.key.settings):
            check_under(programs.key.settings)
            if self._tiers_of(programs) == "coarse":
                coarse, _, programs.first_trace = self._compiler.compile(
                    programs, "coarse", args, kwargs, background=background
                )
                programs.coarse, programs.ended_coarse = coarse, True
                return
            fine = self._compiler.compile_fine_ahead(
                programs, args, kwargs, background=background
            )
        programs.fine, programs.first_trace = fine, None
        if not self._keeps_coarse:
            programs.coarse = None

    def _abstract(self, programs: Programs) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments of a signature, with shapes in place of arrays."""
        dynamic, named = abstract_arguments(programs.key)
        return self._static.join(dynamic, named, programs.key.static)

    def _maybe_refine(self, programs: Programs) -> None:
        """Queues the fine program from run `refine_after` of the coarse one on."""
        if programs.runs.coarse < programs.refine_after:
            return
        if (self._tiers or SETTINGS.tiers) == "coarse":
            return
        if not programs.lock.acquire(blocking=False):  # another thread is compiling
            return
        try:
            if programs.may_refine:
                programs.ended_coarse = False
                programs.refining = self._submit(programs)
        finally:
            programs.lock.release()

    def _submit(self, programs: Programs) -> Pending:
        """Queues the final program of a signature for the background thread."""
        return WORKER.submit(functools.partial(self._refine, programs))

    def _refine(self, programs: Programs) -> None:
        try:
            self._compile_ahead(programs, background=True)
        except CompilationError as error:
            log.warning("%s keeps its coarse program: %s", self._name, error)
            raise
        except Exception as error:
            log.warning(
                "compiling the fine program of %s in the background failed, so calls"
                " keep using the coarse one, which gives the same results: %s: %s;"
                " usually a variable that the function reads has changed since its"
                " first call: pass it as an argument",
                self._name,
                type(error).__name__,
                shown(str(error), 400),
            )
            raise

    def _check_stance(self, programs: Programs) -> None:
        if not may_compile():
            raise CompilationError(
                f"a call of {self._name} would have to compile, because"
                f" {programs.reason}, and eb.set_stance('fail_on_compile') forbids it;"
                f" {self._advice}, before the stance is set"
            )


def _as_array(leaf: Any) -> Any:
    """Converts a NumPy array to a JAX array, as compiled functions receive it."""
    return jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf
