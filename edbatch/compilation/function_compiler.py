"""Compiles the programs of a function of plans; `TieredFunction` says which and when.

A user's function may read variables besides its arguments. All programs of a signature
use the values of the first call: see `first_trace`.
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
    run_in_tier,
    run_numbered,
    with_fresh_trace,
)
from edbatch.compilation.worker import WORKER
from edbatch.errors import CompilationError
from edbatch.stored_programs.stored_program import NotStoredError, only_stored

# Trace numbers by JAX settings: all functions share the traces of what they call.
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
        reads_variables: Whether the function is user code, which may read variables
            that change; the fine program is compiled only if they have not changed.
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
        """Returns the jitted function for enclosing traces, without XLA options."""
        return self._under_settings({})

    def fine(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Returns the jitted function for the fine program of a signature."""
        options = compiler_options((args, kwargs))
        if self._reads_variables:
            return self._jit(with_fresh_trace(self._function), options)
        return self._under_settings(options)

    def _under_settings(self, options: dict[str, Any]) -> Any:
        """Returns the jitted function for XLA options and the current JAX settings."""
        # `jax.jit` would reuse a trace of the same function under some other settings.
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
        """Returns a jitted function for the coarse program of a signature."""
        run = with_fresh_trace if self._reads_variables else run_in_tier
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
            programs: Programs of the signature; not modified.
            tier: The tier of the program.
            args: Positional arguments of the signature, abstract or concrete, including
                static ones.
            kwargs: Keyword arguments, likewise.
            background: Whether no call waits for the program.
            remembers: Whether to keep the trace for comparison with a later one.

        Returns:
            The jitted function that holds the program, the record, and the first trace;
            None for the trace if no later one is compared with it.

        Raises:
            Exception: Raised while tracing the function.
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
            programs: Programs of the signature; not modified.
            args: Positional arguments of the signature, abstract or concrete, including
                static ones.
            kwargs: Keyword arguments, likewise.
            background: Whether no call waits for the program.

        Returns:
            The jitted function that holds the program.

        Raises:
            Exception: Raised while tracing the function.
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
                # Compare coarse traces: a fine trace always differs from a coarse one.
                lambda _: self._check_same(first, "coarse", args, kwargs),
                background=background,
            )
        try:
            if first is not None:
                first.check_constants()  # lowering read them after `_check_same`
            elif own is not None and programs.first_trace is not None:
                # A call compiled the coarse program meanwhile: both programs must match
                # the current values of the variables.
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
            programs: Programs of the signature; not modified.
            args: Positional arguments of the signature, abstract or concrete, including
                static ones.
            kwargs: Keyword arguments, likewise.

        Returns:
            The jitted function that holds the program; None if there is none.
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
        callbacks: dict[str, Callable[[Any], None]] = {"at_traced": at_traced}
        if background:
            reads = is_noted(note)
            callbacks["at_compiler"] = functools.partial(
                WORKER.at_compiler, reads=reads
            )
        compile_stages(jitted, args, kwargs, record, note=note, **callbacks)
        return record

    def _check_same(
        self,
        first: FirstTrace,
        tier: Tier,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Checks that the function still traces to the same operations."""
        again = self._jit(with_fresh_trace(self._function, tier), {})
        first.check(again.trace(*args, **kwargs))

    def _jit(self, function: Callable[..., Any], options: dict[str, Any]) -> Any:
        return jax.jit(function, compiler_options=options or None, **self._options)
