"""The signature of a module's method as a function of its parameters."""

import inspect
from typing import Any

from edbatch.errors import CellError, nearest
from edbatch.graph.cell import RNG

_FLAGS = (bool, bool | None, "bool", "bool | None", "Optional[bool]")


def find_method(module: Any, name: str) -> Any:
    """Finds a method of a module.

    Args:
        module: The module.
        name: The method's name.

    Returns:
        The method, unbound.

    Raises:
        CellError: The module has no such method.
    """
    method = getattr(type(module), name, None)
    if not callable(method):
        known = [
            each
            for each, value in vars(type(module)).items()
            if callable(value) and not each.startswith("_")
        ]
        raise CellError(
            f"{type(module).__name__} has no method {name!r}; " + nearest(name, known)
        )
    return method


def cell_name(module: Any, method: str) -> str:
    """Names the cell of a method.

    Args:
        module: The module.
        method: The method's name.

    Returns:
        The name of the module's class, followed by the method's unless that is
        `__call__`.
    """
    name = type(module).__name__
    return name if method == "__call__" else f"{name}.{method}"


def function_signature(method: Any, *, takes_rng: bool) -> inspect.Signature:
    """Makes the signature of a function that runs a method.

    Args:
        method: The method, unbound.
        takes_rng: Whether the function takes an optional key.

    Returns:
        The method's own signature, with the parameters in place of `self`.
    """
    own = list(inspect.signature(method).parameters.values())[1:]
    names = {each.name for each in own}
    first = "params" if "params" not in names else "module_params"
    parameters = [inspect.Parameter(first, inspect.Parameter.POSITIONAL_ONLY), *own]
    if takes_rng and RNG not in names:
        key = inspect.Parameter(RNG, inspect.Parameter.KEYWORD_ONLY, default=None)
        at = len(parameters) - any(x.kind is x.VAR_KEYWORD for x in own)
        parameters.insert(at, key)
    return inspect.Signature(parameters)


def flags(signature: inspect.Signature) -> list[str]:
    """Finds the arguments that are flags, on which a module branches in Python.

    Args:
        signature: The signature of the cell's function.

    Returns:
        Names of the arguments whose default is a bool, or whose annotation is ``bool``
        or ``bool | None``.

    Example:
        >>> def dropout(x, rate: float, deterministic: bool | None = None): ...
        >>> flags(inspect.signature(dropout))
        ['deterministic']
    """
    return [
        each.name
        for each in signature.parameters.values()
        if isinstance(each.default, bool) or each.annotation in _FLAGS
    ]
