"""Compiles the programs of a function of plans; `TieredFunction` says which and when.

The programs of a user's function, which may read variables beside its arguments, are
those of the variables of its first call: see `first_trace`.
"""

import functools
import threading
from collections.abc import Callable
from typing import Any

import jax

from edbatch.cell.type_call import trace_settings
from edbatch.compilation.first_trace import FirstTrace
from edbatch.compilation.kept_fine import check_note, is_noted, note_name
from edbatch.compilation.program import Programs
from edbatch.compilation.record import Compilation
from edbatch.compilation.report import keep
from edbatch.compilation.stages import compile_stages
from edbatch.compilation.tier import (
    Tier,
    compiler_options,
    in_tier,
    new_trace_number,
    run_afresh,
    run_in_tier,
    run_numbered,
)
from edbatch.compilation.worker import WORKER
from edbatch.errors import CompilationError
from edbatch.stored_programs.stored_program import NotStoredError, only_stored

# What functions call is traced once for all of them, under each settings of JAX.
_NUMBERS: dict[tuple[Any, ...], int] = {}
_LOCK = threading.Lock()


def _number_of(settings: tuple[Any, ...]) -> int:
    with _LOCK:
        if settings not in _NUMBERS:
            _NUMBERS[settings] = new_trace_number() if _NUMBERS else 0
        return _NUMBERS[settings]


class FunctionCompiler:
    """Compiles the programs of one function.

    Args:
        function: The function.
        options: Options of `jax.jit`.
        name: The function's name in reports.
        reads_variables: Whether the function is a user's, which may read variables
            that change; the fine program is compiled only if they have not.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: dict[str, Any],
        name: str,
        *,
        reads_variables: bool,
    ) -> None:
        self._function = function
        self._options = options
        self._name = name
        self._reads_variables = reads_variables
        self._functions: dict[tuple[Any, ...], Any] = {}  # by settings of JAX
        self._jitted: dict[tuple[Any, ...], Any] = {}

    def inlined(self) -> Any:
        """Returns the function of `jax.jit` for traces, without options of XLA."""
        return self._under_settings({})

    def fine(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Returns the function of `jax.jit` for the fine program of a signature."""
        options = compiler_options((args, kwargs))
        if self._reads_variables:
            return self._jit(run_afresh(self._function), options)
        return self._under_settings(options)

    def _under_settings(self, options: dict[str, Any]) -> Any:
        """The function of `jax.jit` of some options for the settings of this moment."""
        # Of one function `jax.jit` keeps a trace under some other settings, too.
        settings = trace_settings()
        key = settings, *options.items()
        if key not in self._jitted:
            function = self._functions.get(settings)
            if function is None:
                number = _number_of(settings)
                function = run_numbered(self._function, number)
                function = self._functions.setdefault(settings, function)
            self._jitted.setdefault(key, self._jit(function, options))
        return self._jitted[key]

    def coarse(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Returns a function of `jax.jit` for the coarse program of a signature."""
        run = run_afresh if self._reads_variables else run_in_tier
        options = compiler_options(in_tier((args, kwargs), "coarse"))
        return self._jit(run(self._function, "coarse"), options)

    def compile(
        self,
        programs: Programs,
        tier: Tier,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        background: bool = False,
        remembers: bool = True,
    ) -> tuple[Any, Compilation, FirstTrace | None]:
        """Compiles a program.

        Args:
            programs: Those of the signature, which are left as they are.
            tier: The tier of the program.
            args: Arguments of the signature, abstract or not, static ones among them.
            kwargs: Those by keyword.
            background: Whether nobody waits for it.
            remembers: Whether a later trace is to be compared with this one.

        Returns:
            The function of `jax.jit` that has it, the record, and what was traced if it
            may be another thing later.

        Raises:
            Exception: What tracing the function raised.
        """
        jitted = (self.fine if tier == "fine" else self.coarse)(args, kwargs)
        found = None

        def remember(traced: Any) -> None:
            nonlocal found
            if self._reads_variables and remembers:
                found = FirstTrace(traced)

        record = self._run_stages(
            programs, tier, jitted, args, kwargs, remember, background=background
        )
        return jitted, record, found

    def compile_fine_ahead(
        self,
        programs: Programs,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        background: bool,
    ) -> Any:
        """Compiles the fine program while calls may run, or compile, the coarse one.

        Args:
            programs: Those of the signature, which are left as they are.
            args: Arguments of the signature, abstract or not, static ones among them.
            kwargs: Those by keyword.
            background: Whether nobody waits for it.

        Returns:
            The function of `jax.jit` that has it.

        Raises:
            Exception: What tracing the function raised.
            CompilationError: The function reads a variable that has changed.
        """
        first = programs.first_trace
        if first is None:
            jitted, record, own = self.compile(
                programs, "fine", args, kwargs, background=background
            )
        else:
            jitted, own = self.fine(args, kwargs), None
            record = self._run_stages(
                programs,
                "fine",
                jitted,
                args,
                kwargs,
                # By coarse traces: a fine one differs in any case.
                lambda _: self._check_same(first, "coarse", args, kwargs),
                background=background,
            )
        try:
            if first is not None:
                first.check_constants()  # which are read after the check
            elif own is not None and programs.first_trace is not None:
                # A call came meanwhile: both read what is there now.
                self._check_same(programs.first_trace, "coarse", args, kwargs)
                self._check_same(own, "fine", args, kwargs)
        except CompilationError as error:
            record.state, record.error = "failed", f"CompilationError: {error}"
            raise
        return jitted

    def find_stored_fine(
        self, programs: Programs, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Looks for a fine program that an earlier process compiled.

        Args:
            programs: Those of the signature, which are left as they are.
            args: Arguments of the signature, abstract or not, static ones among them.
            kwargs: Those by keyword.

        Returns:
            The function of `jax.jit` that has it; None if there is none.
        """
        note = note_name(self._name, programs.text)
        if note is None or not is_noted(note):
            return None
        record = Compilation(
            self._name, "fine", programs.reason, programs=programs.runs
        )
        check = functools.partial(check_note, note)
        fine = self.fine(args, kwargs)
        try:
            with only_stored():
                compile_stages(fine, args, kwargs, record, at_lowered=check)
        except NotStoredError:
            return None
        keep(record)
        return fine

    def clear_cache(self) -> None:
        """Drops the programs that signatures share."""
        for jitted in tuple(self._jitted.values()):
            jitted.clear_cache()

    def _run_stages(
        self,
        programs: Programs,
        tier: Tier,
        jitted: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        at_traced: Callable[[Any], None],
        *,
        background: bool,
    ) -> Compilation:
        """Traces, lowers and compiles, and returns the record."""
        tier = "coarse" if programs.only_coarse else tier
        record = keep(
            Compilation(
                self._name, tier, programs.reason, background, programs=programs.runs
            )
        )
        note = note_name(self._name, programs.text, tier)
        told: dict[str, Callable[[Any], None]] = {"at_traced": at_traced}
        if background:
            reads = is_noted(note)
            told["at_compiler"] = functools.partial(WORKER.at_compiler, reads=reads)
        compile_stages(jitted, args, kwargs, record, note=note, **told)
        return record

    def _check_same(
        self,
        first: FirstTrace,
        tier: Tier,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Checks that the function is traced to what it was traced to before."""
        again = self._jit(run_afresh(self._function, tier), {})
        first.check(again.trace(*args, **kwargs))

    def _jit(self, function: Callable[..., Any], options: dict[str, Any]) -> Any:
        return jax.jit(function, compiler_options=options or None, **self._options)
