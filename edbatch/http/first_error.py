"""A Pydantic validator that stops at the first invalid element of a list.

Pydantic itself continues to the end and keeps every error. A body of one megabyte may
cause a million errors of a kilobyte each, while only the first is reported.
"""

from typing import Any, Protocol

from pydantic import BaseModel
from pydantic_core import SchemaValidator

_LISTS = frozenset({"list", "tuple", "set", "frozenset"})
# Keys of a schema with values and annotations, not nested schemas.
_VALUES = frozenset({"default", "expected", "members", "metadata"})


class Validator(Protocol):
    """Protocol of a validator of JSON for one type."""

    def validate_json(self, data: bytes, *, strict: bool) -> Any:
        """Returns the value, or raises a ``ValidationError``."""


def first_error_validator(model: type[BaseModel]) -> Validator:
    """Returns a model's validator that stops at the first invalid element of a list.

    Args:
        model: The Pydantic model.

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
        # Without the types' prebuilt validators, which do not stop.
        return SchemaValidator(schema, None, False)
    except TypeError:  # a version of Pydantic without that argument
        return model.__pydantic_validator__


def _stopping(schema: Any) -> Any:
    if isinstance(schema, list | tuple):
        return type(schema)(map(_stopping, schema))
    if type(schema) is not dict:
        return schema
    kind = schema.get("type")
    values = _VALUES if isinstance(kind, str) else ()  # otherwise keys are field names
    found = {
        key: each if key in values else _stopping(each) for key, each in schema.items()
    }
    if isinstance(kind, str) and kind in _LISTS:
        found["fail_fast"] = True
    return found
