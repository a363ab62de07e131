"""Configurable limits on HTTP requests."""

from dataclasses import dataclass

from edbatch.arguments import check_number
from edbatch.errors import ServiceError

# Pydantic's parser and validator stop at a depth of 200.
MOST_DEPTH = 190


@dataclass(frozen=True)
class Limits:
    """Limits on requests over HTTP.

    Attributes:
        max_body_bytes: Maximum length of a body.
        max_depth: Maximum number of open brackets in its JSON.
        deadline_ms: Default deadline of requests, in milliseconds; None for none.

    Raises:
        ServiceError: A limit is out of range.

    Example:
        >>> Limits(max_depth=1000)
        Traceback (most recent call last):
            ...
        edbatch.errors.ServiceError: max_depth is ... from 1 to 190 but this is 1000...
    """

    max_body_bytes: int = 2**20
    max_depth: int = 128
    deadline_ms: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_body_bytes", "max_depth"):
            check_number(ServiceError, name, getattr(self, name), 1, whole=True)
        if self.max_depth > MOST_DEPTH:
            raise ServiceError(
                f"max_depth is a number from 1 to {MOST_DEPTH} but this is"
                f" {self.max_depth}; inputs that are deeper are sent flat, for example"
                " as a list of nodes with the numbers of their children"
            )
        if self.deadline_ms is not None:
            check_number(ServiceError, "deadline_ms", self.deadline_ms, 0)
