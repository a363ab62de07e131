"""A validator that stops at the first wrong element of a list.

Pydantic goes on to the end, and keeps each error: a body of a megabyte may hold a
million, of a kilobyte each, for a sentence about the first.
"""

from typing import Any, Protocol

from pydantic import BaseModel
from pydantic_core import SchemaValidator

_LISTS = frozenset({"list", "tuple", "set", "frozenset"})
# What stands there are values and notes of the types, and no schemas.
_VALUES = frozenset({"default", "expected", "members", "metadata"})


class Validator(Protocol):
    """What reads JSON of one type."""

    def validate_json(self, data: bytes, *, strict: bool) -> Any:
        """Returns the value, or raises a ``ValidationError``."""


def first_error_validator(model: type[BaseModel]) -> Validator:
    """Returns a validator of a model that stops at the first wrong element of a list.

    Args:
        model: The model.

    Example:
        >>> from pydantic import ValidationError, create_model
        >>> model = create_model("Numbers", values=(list[int], ...))
        >>> try:
        ...     first_error_validator(model).validate_json(b'{"values": [[], [], []]}')
        ... except ValidationError as error:
        ...     print(error.error_count())
        1
    """
    schema: Any = _stopping(model.__pydantic_core_schema__)
    try:
        # Not with the validators that the types have already, which go on.
        return SchemaValidator(schema, None, False)
    except TypeError:  # a version of Pydantic without that argument
        return model.__pydantic_validator__


def _stopping(schema: Any) -> Any:
    if isinstance(schema, list | tuple):
        return type(schema)(map(_stopping, schema))
    if type(schema) is not dict:
        return schema
    kind = schema.get("type")
    values = _VALUES if isinstance(kind, str) else ()  # else it is of fields, by name
    found = {
        key: each if key in values else _stopping(each) for key, each in schema.items()
    }
    if isinstance(kind, str) and kind in _LISTS:
        found["fail_fast"] = True
    return found
