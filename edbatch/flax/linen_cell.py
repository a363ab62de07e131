"""A linen module as the function of a cell."""

import math
from collections.abc import Mapping
from inspect import Parameter
from typing import Any

from flax import errors, linen

from edbatch.errors import CellError
from edbatch.flax.signature import cell_name, find_method, function_signature
from edbatch.flax.streams import stream_keys
from edbatch.graph.cell import RNG

_FLAG = "deterministic"
_WRONG_VARIABLES = (
    errors.ApplyScopeInvalidVariablesTypeError,
    errors.ApplyScopeInvalidVariablesStructureError,
    errors.ScopeCollectionNotFound,
    errors.ScopeParamNotFoundError,
)


class LinenFunction:
    """Runs a method of a linen module on variables; a pure function.

    Args:
        module: The module.
        method: The method's name.
        streams: Streams from which it draws random numbers.
    """

    def __init__(
        self, module: linen.Module, method: str, streams: tuple[str, ...]
    ) -> None:
        self.__name__ = cell_name(module, method)
        self.__signature__ = function_signature(
            find_method(module, method), takes_rng=bool(streams)
        )
        self._module = module
        self._method = method
        self._streams = streams
        parameters = self.__signature__.parameters
        is_open = getattr(module, _FLAG, None) is None  # the module does not set it
        # If the cell has to set the flag: its position among the arguments after the
        # variables, infinity if it is keyword-only.
        self._flag: float | None = None
        if is_open and _FLAG in parameters:
            by_name = parameters[_FLAG].kind is Parameter.KEYWORD_ONLY
            self._flag = math.inf if by_name else [*parameters].index(_FLAG) - 1

    def __call__(self, variables: Any, *args: Any, **kwargs: Any) -> Any:
        """Runs the method for one instance."""
        rng = kwargs.pop(RNG, None) if self._streams else None
        keys = {} if rng is None else stream_keys(rng, self._streams)
        if self._streams and self._lacks_flag(args, kwargs):
            kwargs[_FLAG] = rng is None
        if not isinstance(variables, Mapping):
            raise self._wrong_variables(type(variables).__name__)
        try:
            return self._module.apply(
                variables, *args, rngs=keys, method=self._method, **kwargs
            )
        except errors.InvalidRngError as error:
            raise self._no_key(error, rng) from error
        except errors.ModifyScopeVariableError as error:
            raise CellError(
                f"{self.__name__} writes to state that is no parameter, but nodes of a"
                f" minibatch run in any order ({_first_sentence(error)}); use a layer"
                " without running averages (LayerNorm, GroupNorm), or"
                " use_running_average=True"
            ) from error
        except _WRONG_VARIABLES as error:
            raise self._wrong_variables(_first_sentence(error)) from error

    def _lacks_flag(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if self._flag is None or _FLAG in kwargs:
            return False
        return len(args) <= self._flag

    def _wrong_variables(self, found: str) -> CellError:
        return CellError(
            f"{self.__name__} takes the variables that its init returned,"
            f" {{'params': ...}}, as first argument, but received others ({found});"
            " pass all of them, of this module alone"
        )

    def _no_key(self, error: Exception, rng: Any) -> CellError:
        if self._streams and rng is None:
            return CellError(
                f"{self.__name__} draws random numbers but has no key"
                f" ({_first_sentence(error)}); pass rng=jax.random.key(seed) where the"
                " minibatch runs, or let its method take deterministic=True"
            )
        return CellError(
            f"{self.__name__} draws random numbers from a stream that the cell does not"
            f" name ({_first_sentence(error)}); name it, for example"
            " eb.flax.cell(module, rngs='dropout')"
        )


def _first_sentence(error: Exception) -> str:
    return str(error).partition(" (http")[0].rstrip(".")
