"""Names by which another process finds functions and cells."""

import functools
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

# Name that multiprocessing gives the main program in the processes that it starts.
_MAIN = {"__mp_main__": "__main__"}


def full_name(thing: Any) -> str:
    """Returns a function's name, for messages and to distinguish models.

    Args:
        thing: A function or another callable object.

    Returns:
        Module and qualified name.

    Example:
        >>> full_name(full_name)
        'edbatch.graph.reference.full_name'
    """
    while isinstance(thing, functools.partial):
        thing = thing.func
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    module = getattr(named, "__module__", None) or ""
    return f"{_MAIN.get(module, module)}.{named.__qualname__}"


def find(module: str, qualname: str) -> Any:
    """Imports the object that a name refers to.

    Args:
        module: A module.
        qualname: A dotted name inside it.

    Returns:
        The object.

    Raises:
        ImportError: There is no such module.
        AttributeError: The module does not have the name.

    Example:
        >>> find("edbatch.graph.reference", "find") is find
        True
    """
    return functools.reduce(getattr, qualname.split("."), import_module(module))


def reference(thing: Any, modules: Sequence[str] = ()) -> tuple[str, str] | None:
    """Finds a name under which an object can be imported.

    Args:
        thing: A function or a cell.
        modules: Modules to search in addition to its own.

    Returns:
        Module and qualified name; None if there is no such name.

    Example:
        >>> reference(find)
        ('edbatch.graph.reference', 'find')
        >>> reference(lambda: None) is None
        True
    """
    qualname = getattr(thing, "__qualname__", None)
    for module in dict.fromkeys((getattr(thing, "__module__", None), *modules)):
        found = sys.modules.get(module) if isinstance(module, str) else None
        if found is None or module is None:
            continue
        names = [qualname] if isinstance(qualname, str) else []
        names += [name for name, each in vars(found).items() if each is thing]
        for name in names:
            try:
                same = functools.reduce(getattr, name.split("."), found) is thing
            except AttributeError:
                continue
            if same:
                return _MAIN.get(module, module), name
    return None
