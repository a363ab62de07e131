"""`Service`: a model with its types for serving, exported by a user's module."""

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
    """A model, with the JSON format of its requests and answers.

    A request is validated against ``input``, then passed through ``decode``, ``model``
    and ``encode``. Exceptions of ``decode`` and ``model`` count as errors of the client
    and affect this request only; exceptions of ``encode`` are errors of the server.
    ``encode``, and ``decode`` of small bodies, run in the event loop and block other
    requests meanwhile.

    Attributes:
        model: ``model(params, instance)``, or the batched function that `edbatch.batch`
            made of it.
        input: The type of a request's input: any type that Pydantic validates, such as
            ``list[float]``, a data class, a Pydantic model or an ``Annotated`` type
            with bounds. JSON is validated strictly against it, and the JSON Schema is
            generated from it.
        decode: Converts a validated input to an instance; by default the input itself.
        encode: Converts a result to JSON values (dicts, lists, numbers, strings).
        output: The type of the answer's JSON, for the schema only.
        examples: Inputs as JSON, or a function that returns some. The server is warmed
            up with them, and the schema contains the first. The closer they are to
            later requests, also in size, the less is compiled later.
        init_params: Creates parameters from a `jax.random` key, or without arguments.
            They define the structure for a parameter file, and are served if there is
            no file.
        load_params: Reads parameters from a path, instead of the built-in formats.
        name: The name for people and metrics; by default that of the model.

    Raises:
        ServiceError: An attribute that must be a function is not one.

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
        """Summary in one line."""
        return f"<Service {self.name!r}>"
