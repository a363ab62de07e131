"""Parses requests and formats answers by the JSON Schemas of a service's types."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
    create_model,
)

from edbatch.errors import ServiceError
from edbatch.http.first_error import first_error_validator
from edbatch.http.json_limits import check_json_text
from edbatch.http.model_error import InputError, first_line
from edbatch.http.refusal import Refusal
from edbatch.http.service import Service
from edbatch.schedule.interrupt import is_ctrl_c

_LONGEST_PLACE = 100
_MOST_ERRORS = 1000  # per request; Pydantic describes all (1 kB each) or none
_DEADLINE = Annotated[float, Field(ge=0, le=86_400_000)]
_PRIORITY = Annotated[float, Field(ge=-1e9, le=1e9)]


@dataclass(frozen=True)
class Call:
    """A parsed request.

    Attributes:
        instance: The model's instance.
        deadline_ms: Time limit for the answer, or None.
        priority: Requests of higher priority run first.
    """

    instance: Any
    deadline_ms: float | None
    priority: float


class Contract:
    """Parses requests and formats answers.

    Args:
        service: The service.
        max_depth: Maximum nesting depth of JSON.

    Attributes:
        examples: Inputs, as clients send them.
        sample: The instances of the examples.
        schema: JSON Schemas of a request and an answer.

    Raises:
        ServiceError: Pydantic cannot validate the service's types, or an example is
            refused.
    """

    def __init__(self, service: Service, max_depth: int) -> None:
        self._decode: Callable[[Any], Any] = service.decode
        self._encode: Callable[[Any], Any] = service.encode
        self._max_depth = max_depth
        request = _request_type(service)
        self._validator = first_error_validator(request)
        self.examples = list(
            service.examples() if callable(service.examples) else service.examples
        )
        self.sample = self._sample()
        self.schema = _schema(service, request, self.examples)

    def read(self, body: bytes) -> Call:
        """Parses the body of a request.

        Raises:
            Refusal: The body is not JSON, or does not match the schema.
            InputError: A validator of the service's type, or `decode`, raised an error.
        """
        check_json_text(body, self._max_depth)
        try:
            found = self._validator.validate_json(body, strict=True)
        except ValidationError as error:
            raise _refusal(error) from None
        except BaseException as error:  # raised by a validator of the service's type
            if is_ctrl_c(error):
                raise
            raise InputError(error) from error
        try:
            instance = self._decode(found.input)
        except BaseException as error:
            if is_ctrl_c(error):
                raise
            raise InputError(error) from error
        return Call(instance, found.deadline_ms, found.priority)

    def write(self, answer: Any) -> bytes:
        """Formats the body of an answer.

        Raises:
            Refusal: The answer contains a number that is not finite.
            ServiceError: The answer is not JSON, or `encode` raised an error.
        """
        found = {"output": self._encoded(answer)}
        try:
            text = _finite_json(found)
        except Refusal:
            raise
        except (TypeError, ValueError) as error:
            raise ServiceError(
                f"the model's answer is not JSON ({first_line(error)}); let encode of"
                " the service write dicts, lists, numbers and text"
            ) from error
        return text.encode()

    def _encoded(self, answer: Any) -> Any:
        try:
            return self._encode(answer)
        except BaseException as error:
            # Some exceptions would be taken for other failures, or end the event loop.
            if is_ctrl_c(error):
                raise
            found = first_line(error, with_type=True)
            raise ServiceError(f"encode of the service raised {found}") from error

    def _sample(self) -> Sequence[Any]:
        """Parses the examples.

        Raises:
            ServiceError: An example is refused.
        """
        found = []
        for k, each in enumerate(self.examples):
            try:
                found.append(self.read(json.dumps({"input": each}).encode()).instance)
            except Exception as error:
                raise ServiceError(
                    f"example {k} of the service would be refused: {first_line(error)};"
                    " examples are inputs as clients send them, in terms of JSON"
                ) from error
        return found


def _finite_json(tree: Any) -> str:
    """Formats JSON; refuses NaN and infinity."""
    try:
        return json.dumps(tree, allow_nan=False)
    except ValueError:
        json.dumps(tree)  # raises again for other causes, such as a cycle
    raise Refusal(
        422,
        "not_finite",
        "the answer to this input holds NaN or infinity, which JSON does not have; send"
        " another input, or let encode of the service write something else in their"
        " place",
    )


def _request_type(service: Service) -> type[BaseModel]:
    try:
        return create_model(
            "Request",
            __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=False),
            input=(service.input, ...),
            deadline_ms=(_DEADLINE | None, None),
            priority=(_PRIORITY, 0),
        )
    except PydanticUserError as error:
        raise _no_type("input", error) from error


def _schema(
    service: Service, request: type[BaseModel], examples: list[Any]
) -> dict[str, Any]:
    """Returns the JSON Schemas of a request and of an answer."""
    try:
        given = request.model_json_schema()
    except PydanticUserError as error:
        raise _no_type("input", error) from error
    try:
        returned = TypeAdapter(service.output).json_schema(mode="serialization")
    except PydanticUserError as error:
        raise _no_type("output", error) from error
    if examples:
        given["examples"] = [{"input": examples[0]}]
    definitions = returned.pop("$defs", None)
    answer: dict[str, Any] = {
        "type": "object",
        "title": "Answer",
        "properties": {"output": returned},
        "required": ["output"],
    }
    if definitions is not None:
        answer["$defs"] = definitions
    found = {"request": given, "answer": answer}
    try:
        json.dumps(found, allow_nan=False)
    except ValueError as error:
        raise ServiceError(
            "the schema of the service holds a number that JSON has not, such as a"
            " default or a bound of infinity; use None, or leave it out"
        ) from error
    return found


def _no_type(field: str, error: PydanticUserError) -> ServiceError:
    return ServiceError(
        f"Pydantic cannot make a schema of {field} of the service: {first_line(error)}"
    )


def _refusal(error: ValidationError) -> Refusal:
    """Returns a refusal with one sentence about the first error."""
    count = error.error_count()
    if count > _MOST_ERRORS:
        return Refusal(
            422,
            "schema_mismatch",
            f"the body violates the schema in {count:,} places, too many to list; GET"
            " /schema returns the schema",
        )
    first, *others = error.errors(
        include_url=False, include_input=False, include_context=False
    )
    message = (first["msg"].splitlines() or [""])[0]
    text = f"{message[:1].lower()}{message[1:]}"
    if first["type"] == "json_invalid":
        return Refusal(400, "invalid_json", f"the body is not JSON: {text[:300]}")
    place = ".".join(map(str, first["loc"])) or "the body"
    if len(place) > _LONGEST_PLACE:
        place = f"{place[:_LONGEST_PLACE]}..."
    more = f" ({len(others):,} more like it)" if others else ""
    return Refusal(
        422, "schema_mismatch", f"{place}: {text[:300]}{more}; GET /schema says more"
    )
