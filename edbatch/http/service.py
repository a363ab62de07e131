"""A model with all that it needs to be served: what a user's module exports."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edbatch.batched import Batched
from edbatch.errors import ServiceError, shown
from edbatch.http.as_json import as_json


def same(value: Any) -> Any:
    """Returns the value itself."""
    return value


@dataclass(frozen=True)
class Service:
    """A model, and how its requests and answers look in JSON.

    A request goes through ``input``, which checks it, ``decode``, ``model`` and
    ``encode``. What ``decode`` and ``model`` raise is the client's error, that of this
    one request; what ``encode`` raises is the server's. ``encode``, and ``decode`` of
    small bodies, run in the event loop, where other requests wait meanwhile.

    Attributes:
        model: ``model(params, instance)``, or the batched function that `edbatch.batch`
            made of it.
        input: The type of a request's input: any that Pydantic checks, such as
            ``list[float]``, a data class, a Pydantic model or an ``Annotated`` type
            with bounds. JSON is checked strictly against it, and the schema is made
            of it.
        decode: Makes an instance of a checked input; by default it is one.
        encode: Makes JSON (dicts, lists, numbers, text) of an answer.
        output: The type of the answer's JSON, for the schema only.
        examples: Inputs as JSON, or a function that returns some, by which the server
            is warmed up; the first stands in the schema. The more they are like the
            requests to come, in size too, the less is compiled later.
        init_params: Makes parameters, of a key of `jax.random` or of nothing: they give
            a file of parameters its structure, and are served where there is no file.
        load_params: Reads parameters from a path, in place of the formats that are
            known by themselves.
        name: The name for people and metrics; by default that of the model.

    Raises:
        ServiceError: A function is none.

    Example:
        >>> import edbatch as eb
        >>> def scale(params, x):
        ...     return eb.cell(lambda params, x: params["w"] * x)(params, x)
        >>> service = Service(scale, input=float, examples=[1.0, 2.5])
        >>> service.name
        'scale'
    """

    model: Callable[[Any, Any], Any] | Batched
    input: Any = Any
    decode: Callable[[Any], Any] = same
    encode: Callable[[Any], Any] = as_json
    output: Any = Any
    examples: Iterable[Any] | Callable[[], Iterable[Any]] = ()
    init_params: Callable[..., Any] | None = None
    load_params: Callable[[Path], Any] | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.model, Batched) and not callable(self.model):
            raise ServiceError(
                "the model of a Service is a function model(params, instance), or what"
                f" eb.batch returns, but this is {shown(self.model)}"
            )
        for field in ("decode", "encode"):
            if not callable(getattr(self, field)):
                raise ServiceError(
                    f"{field} of a Service is a function of one value but this is"
                    f" {shown(getattr(self, field))}; leave it out if there is nothing"
                    " to do"
                )
        for field in ("init_params", "load_params"):
            found = getattr(self, field)
            if found is not None and not callable(found):
                raise ServiceError(
                    f"{field} of a Service is a function but this is {shown(found)};"
                    " write a lambda, or leave it out"
                )
        if not self.name:
            model = self.model.model if isinstance(self.model, Batched) else self.model
            found = getattr(model, "__name__", type(model).__name__)
            object.__setattr__(self, "name", found)

    def __repr__(self) -> str:
        """Says what it is in one line."""
        return f"<Service {self.name!r}>"
