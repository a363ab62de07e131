"""An nnx module as the function of a cell."""

from typing import Any

from flax import nnx

from edbatch.errors import CellError
from edbatch.flax.signature import cell_name, find_method, function_signature
from edbatch.flax.streams import stream_keys
from edbatch.graph.cell import RNG

_Values = dict[tuple[Any, ...], Any]


class NnxFunction:
    """Runs a method of an nnx module on its parameters; a pure function.

    Args:
        module: The module. Its structure is kept, and none of its parameters.
        method: The method's name.
    """

    def __init__(self, module: nnx.Module, method: str) -> None:
        own = find_method(module, method)
        self.__name__ = cell_name(module, method)
        self._method = method
        self._streams = _streams(module)
        self.__signature__ = function_signature(own, takes_rng=bool(self._streams))
        parts: Any = nnx.split(module, nnx.RngState, ...)
        self._graph, self._rng_state, params = parts
        self._paths = set(_values(params))

    def __call__(self, params: Any, *args: Any, **kwargs: Any) -> Any:
        """Runs the method for one instance."""
        rng: Any = kwargs.pop(RNG, None) if self._streams else None
        module = self._module(params)
        if self._streams and rng is None:
            module.eval()
        elif self._streams:
            keys: dict[str, Any] = stream_keys(rng, self._streams)
            nnx.reseed(module, **keys)
        before = _values(nnx.state(module))
        result = getattr(module, self._method)(*args, **kwargs)
        self._check_unchanged(before, module, has_key=rng is not None)
        return result

    def _module(self, params: Any) -> nnx.Module:
        """Returns a module of its own, so that nothing is written to the caller's."""
        if isinstance(params, nnx.Module):
            return nnx.merge(*nnx.split(params), copy=True)
        if not isinstance(params, nnx.State):
            raise self._wrong_params(type(params).__name__)
        own = nnx.filter_state(params, nnx.Not(nnx.RngState))
        odd = sorted(map(_name, _values(own).keys() ^ self._paths))
        if odd:
            raise self._wrong_params(f"a state that differs in {odd[0]}")
        return nnx.merge(self._graph, self._rng_state, own, copy=True)

    def _wrong_params(self, found: str) -> CellError:
        return CellError(
            f"{self.__name__} takes nnx.state(module, nnx.Param), the whole state or"
            f" the module as first argument, but received {found}; pass all state that"
            " the module has, of this module alone"
        )

    def _check_unchanged(
        self, before: _Values, module: nnx.Module, *, has_key: bool
    ) -> None:
        for path, variable in nnx.to_flat_state(nnx.state(module)):
            if variable.get_value() is before.get(path):
                continue
            if not isinstance(variable, nnx.RngState):
                raise CellError(
                    f"{self.__name__} writes to {_name(path)}, a"
                    f" {type(variable).__name__}, but nodes of a minibatch run in any"
                    " order; use a layer without running averages (LayerNorm,"
                    " GroupNorm), or module.eval()"
                )
            if not has_key:
                raise CellError(
                    f"{self.__name__} draws random numbers ({_name(path)}) but has no"
                    " key; pass rng=jax.random.key(seed) where the minibatch runs, and"
                    " make the cell of a module that has its streams (rngs=) already"
                )


def _streams(module: nnx.Module) -> list[str]:
    """Names of a module's streams of random numbers."""
    nodes = (node for _, node in nnx.iter_graph(module))
    return sorted({each.tag for each in nodes if isinstance(each, nnx.RngStream)})


def _values(state: Any) -> _Values:
    """The arrays of a state, by path."""
    flat = nnx.to_flat_state(state)
    return {path: variable.get_value() for path, variable in flat}


def _name(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path))
