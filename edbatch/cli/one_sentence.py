"""Reports errors of commands as one sentence on stderr, with exit code 2."""

import errno
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import Abort, TyperException

from edbatch.cli.console import say
from edbatch.compilation.settings import check_environment
from edbatch.ctrl_c import EXIT_INTERRUPTED, kill_as_ctrl_c
from edbatch.errors import EdbatchError, raising_frame, raising_line, shown

EXIT_ERROR = 2
EXIT_CLOSED_PIPE = 141  # exit code of a program that SIGPIPE has ended
DEBUG = "EDBATCH_DEBUG"
JAX_FOLDER = "jax_compilation_cache_dir"
_MOST = 2**31 - 1  # maximum of integer options; no array has a longer axis
_LIMITS = frozenset({"max_body_bytes", "max_nodes", "max_waiting", "max_in_flight"})
_ONCE = frozenset({"policy", "model", "workload", "instances", "params"})
_LAST_SEED = 2**63 - 1
_OUT_OF_MEMORY = "Out of memory"  # in the text of JAX's error, which has no class
_SHOWN = 120  # characters of an error message
_OF_OWN_MODELS = ("--model", "--instances")  # some commands do not have them


class CommandError(EdbatchError, ValueError):
    """A command cannot do what its options request."""


class OneSentenceCommand(TyperCommand):
    """A command whose errors are reported in one sentence."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the options; those in `_ONCE`, such as --model, may occur only once.

        For the others the last occurrence counts, so that a user can override the
        options of a script.

        Args:
            ctx: The context of the command.
            args: The command line arguments.

        Returns:
            The remaining arguments.

        Raises:
            CommandError: An option in `_ONCE` is given twice.
        """
        _, _, order = self.make_parser(ctx).parse_args(args=[*args])
        for each in order:
            if each.name in _ONCE and not each.multiple and order.count(each) > 1:
                raise CommandError(
                    f"{each.opts[0]} is given {order.count(each)} times but takes one"
                    f" value; give one, see {ctx.command_path} --help"
                )
        found: list[str] = super().parse_args(ctx, args)
        return found

    def invoke(self, ctx: Any) -> Any:
        """Runs the command.

        Signals that end the process are handled like Ctrl-C, which leaves no file
        half-written.

        Raises:
            CommandError: An integer option exceeds its maximum.
        """
        ctx.with_resource(kill_as_ctrl_c())
        for name, value in ctx.params.items():
            most = _LAST_SEED if "seed" in name else _MOST
            for each in value if isinstance(value, list | tuple) else [value]:
                if type(each) is int and each > most and name not in _LIMITS:
                    raise CommandError(
                        f"--{name.replace('_', '-')} is {shown(each)} but may be"
                        f" {most:,} at most; give less"
                    )
        return super().invoke(ctx)

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Runs the command and exits."""
        inner = super().main
        return _exit(partial(inner, *args, **{**extra, "standalone_mode": False}))


class CachedCommand(OneSentenceCommand):
    """A command that stores compiled programs for later commands."""

    def invoke(self, ctx: Any) -> Any:
        """Runs the command with the user's cache, unless JAX has its own folder."""
        import jax

        from edbatch.compilation import open_cache

        if not getattr(jax.config, JAX_FOLDER):
            folder = cache_folder()
            if folder is not None and (problem := open_cache(folder)) is not None:
                say(f"Note: {problem}")
        return super().invoke(ctx)


def cache_folder() -> Path | None:
    """Returns the folder in which commands store programs: JAX's own if it is set.

    An empty name counts as not set, as it does for JAX.

    Raises:
        CommandError: JAX was given the address of a remote cache.
    """
    import jax

    from edbatch.compilation import default_cache_folder

    own = getattr(jax.config, JAX_FOLDER)
    if own and "://" in own:
        raise CommandError(
            "the cache of compiled programs must be a folder of this machine but JAX"
            f" was given the address {own}; manage that cache with the tools of its"
            " storage, or set JAX_COMPILATION_CACHE_DIR to a folder"
        )
    return Path(own) if own else default_cache_folder()


class OneSentenceGroup(TyperGroup):
    """A group of commands whose errors are reported in one sentence."""

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Runs the named command and exits."""
        inner = super().main
        return _exit(partial(inner, *args, **{**extra, "standalone_mode": False}))


def is_debugging() -> bool:
    """Whether the user wants tracebacks."""
    return os.environ.get(DEBUG, "0") not in ("", "0")


def _exit(run: Callable[[], Any]) -> NoReturn:
    try:
        check_environment()
        code = run()
    except (EdbatchError, TyperException, OSError) as error:
        if is_debugging():
            raise
        say(f"Error: {_sentence(error)}")
        code = EXIT_ERROR
    except (MemoryError, RuntimeError) as error:
        if is_debugging() or not _is_out_of_memory(error):
            raise
        text = next(iter(str(error).splitlines()), "")
        text = text[max(0, text.find(_OUT_OF_MEMORY)) :][:_SHOWN]
        detail = f" ({text})" if text else ""
        say(
            f"Error: out of memory{detail}; use a smaller --hidden, --batch-size or"
            " number of instances"
        )
        code = EXIT_ERROR
    except Abort:
        code = EXIT_INTERRUPTED
    except SystemExit as error:  # not from typer, which returns its codes here
        code = _ended(error)
    if code == EXIT_INTERRUPTED:
        say("Interrupted.")
    sys.exit(code or 0)


def _ended(error: SystemExit) -> int:
    """Returns the exit code after a call of `sys.exit`."""
    frame, _, _ = raising_frame(error)
    module = "" if frame is None else str(frame.f_globals.get("__name__", ""))
    # These exit when the reader of the output has closed the pipe.
    if module.partition(".")[0] in ("rich", "typer"):
        return EXIT_CLOSED_PIPE
    say(
        f"Error: the model, or what it imports, called sys.exit({error.code!r})"
        f" ({raising_line(error)}), which ended the command; leave that out"
    )
    return EXIT_ERROR


def _is_out_of_memory(error: Exception) -> bool:
    """Whether NumPy or JAX could not allocate an array."""
    return isinstance(error, MemoryError) or _OUT_OF_MEMORY in str(error)


def _sentence(error: Exception) -> str:
    if isinstance(error, TyperException):
        message = error.format_message().rstrip(".")
        context: typer.Context | None = getattr(error, "ctx", None)
        command = context.command_path if context else "edbatch"
        if getattr(error, "option_name", None) in _OF_OWN_MODELS:
            return (
                f"{command} runs ready workloads, which edbatch workloads lists, and"
                " takes no model of your own; edbatch bench --model measures"
                " yours, and eb.batch runs it in Python"
            )
        return f"{message}; see '{command} --help'"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename} cannot be used: {error.strerror}"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            "something, probably the command's output, cannot be written"
            f" ({error.strerror}); make room, or write it to another place"
        )
    return str(error)
