"""Loads and calls user functions named package.module:function on the command line."""

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from edbatch.cli.one_sentence import DEBUG, CommandError, is_debugging
from edbatch.errors import EdbatchError, nearest


def find(option: str, name: str) -> Any:
    """Imports an object that a user named, also from modules in the current folder.

    Args:
        option: The option, for messages.
        name: ``package.module:function``.

    Returns:
        The object.

    Raises:
        CommandError: There is no such module, or the module has no such name.

    Example:
        >>> find("--model", "math:sqrt")(9.0)
        3.0
    """
    module_name, colon, attribute = name.partition(":")
    if not module_name or not colon or not attribute:
        raise CommandError(
            f"{option} takes package.module:function, such as my_models:encode, but"
            f" received {name!r}"
        )
    found: Any = _import(option, module_name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            known = [
                each
                for each, value in vars(found).items()
                if not (each.startswith("_") or isinstance(value, ModuleType))
            ]
            raise CommandError(
                f"{option} names {name!r} but {module_name} has no {part!r};"
                f" {nearest(part, known)}"
            )
        found = getattr(found, part)
    return found


def _import(option: str, name: str) -> ModuleType:
    if name.startswith("."):
        raise CommandError(
            f"{option} names the module {name!r}; name it as `import` does, without"
            " folder and .py, and run the command in its folder"
        )
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise CommandError(
                f"{option} names the module {name!r}, which imports {error.name!r},"
                " which is not installed"
            ) from error
        is_file = name.endswith(".py") or os.sep in name
        fix = "name the module as `import` does, without folder and .py, and have it"
        raise CommandError(
            f"{option} names the module {name!r} but there is none;"
            f" {fix if is_file else 'it must be'} installed, or in the current folder"
            f" ({folder})"
        ) from error
    except SyntaxError as error:
        if is_debugging():
            raise
        place = f"{os.path.basename(error.filename or name)}:{error.lineno}"
        raise CommandError(
            f"{option} names the module {name!r}, which is not valid Python:"
            f" {error.msg} ({place})"
        ) from error
    except Exception as error:
        raise _failed(f"importing {name!r}, named by {option},", error) from error


def call(option: str, function: Any, *arguments: Any) -> Any:
    """Calls a user's function with the arguments, or with none if it takes none.

    Args:
        option: The option that named the function, for messages.
        function: The function; an object that is not callable is returned as is.
        *arguments: The arguments.

    Returns:
        The function's result.

    Raises:
        CommandError: The function takes another number of arguments, or fails.

    Example:
        >>> call("--instances", lambda: [1], "rng", 2)
        [1]
        >>> call("--instances", lambda rng, count: [count], "rng", 2)
        [2]
    """
    if not callable(function):
        return function
    for given in (arguments, ()):
        if _takes(function, len(given)):
            kinds = ", ".join(type(each).__name__ for each in given)
            with running(f"the function of {option}, called with ({kinds}),"):
                return function(*given)
    raise CommandError(
        f"the function of {option} takes no argument, or {len(arguments)}, but it is"
        f" defined with ({', '.join(inspect.signature(function).parameters)})"
    )


def _takes(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    return True


@contextmanager
def running(what: str) -> Iterator[None]:
    """Turns an error of the user's code into one sentence that gives its location."""
    try:
        yield
    except EdbatchError:
        raise
    except Exception as error:
        raise _failed(what, error) from error


def _failed(what: str, error: Exception) -> Exception:
    if is_debugging():
        return error
    place = traceback.extract_tb(error.__traceback__)[-1]
    text = (str(error).splitlines() or ["no message"])[0]
    return CommandError(
        f"{what} raised {type(error).__name__}: {text}"
        f" ({os.path.basename(place.filename)}:{place.lineno}); set {DEBUG}=1 for the"
        " whole traceback"
    )
