"""Converts a model's result to JSON."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import jax
import numpy as np

from edbatch.errors import ServiceError, shown


def as_json(value: Any) -> Any:
    """Converts a model's result to JSON values.

    Args:
        value: Arrays, numbers, strings, None, and dicts, lists, tuples, sets and data
            classes of them.

    Returns:
        The same values as dicts, lists, numbers, strings, booleans and None; an array
        becomes nested lists.

    Raises:
        ServiceError: The result contains a value of another type.

    Example:
        >>> as_json({"p": np.array([0.5, 0.25]), "depth": 3})
        {'p': [0.5, 0.25], 'depth': 3}
    """
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return np.asarray(value).tolist()
    if isinstance(value, Mapping):
        return {str(name): as_json(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_json(each) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: as_json(getattr(value, each.name)) for each in fields(value)}
    raise ServiceError(
        f"the model's answer holds {shown(value)}, of type {type(value).__name__},"
        " which cannot be written as JSON; give the service a function encode(answer)"
    )
