"""An nnx module as the function of a cell."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from flax import nnx

from edbatch.cell.jaxpr import argument_of, trace
from edbatch.cell.module_writes import WatchedModules
from edbatch.errors import CellError
from edbatch.flax.signature import cell_name, find_method, function_signature
from edbatch.flax.streams import stream_keys
from edbatch.graph.cell import RNG

_Path = tuple[Any, ...]
_Values = dict[_Path, Any]


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
        run = partial(_run, self._method, args, kwargs)
        graph, state = nnx.split(module)
        watched = WatchedModules(module)
        result, changed = run(module)
        attributes = watched.written().attributes
        if rng is not None:
            changed = {
                path: each
                for path, each in changed.items()
                if not issubclass(each, nnx.RngState)
            }
        if changed:
            self._check_unchanged(_written(graph, state, run, changed))
        for name in attributes:
            raise CellError(
                f"{self.__name__} writes to the attribute {name} of its module, but"
                " nodes of a minibatch run in any order; return what is to be kept, and"
                " pass it on as an argument"
            )
        return result

    def _module(self, params: Any) -> nnx.Module:
        """Returns a module of its own, so that nothing is written to the caller's."""
        if isinstance(params, nnx.Module):
            return nnx.merge(*nnx.split(params), copy=True)
        if not isinstance(params, nnx.State):
            raise self._wrong_params(type(params).__name__)
        own = nnx.filter_state(params, nnx.Not(nnx.RngState))
        found = set(_values(own))
        if missing := sorted(map(_name, self._paths - found)):
            raise self._wrong_params(f"a state without {missing[0]}")
        if odd := sorted(map(_name, found - self._paths)):
            raise self._wrong_params(f"a state with {odd[0]}, which this one has not")
        return nnx.merge(self._graph, self._rng_state, own, copy=True)

    def _wrong_params(self, found: str) -> CellError:
        return CellError(
            f"{self.__name__} takes the module or all of its state as first argument,"
            f" but received {found}; pass the module, or nnx.state(module), of this"
            " module alone (nnx.state(module, nnx.Param) if it has parameters alone)"
        )

    def _check_unchanged(self, written: dict[_Path, type]) -> None:
        """Raises an error that names the first variable that was written to."""
        for path, kind in written.items():
            if not issubclass(kind, nnx.RngState):
                fix = "return it, and pass it on as an argument"
                if issubclass(kind, nnx.Intermediate):
                    fix = "return what is sown"
                elif issubclass(kind, nnx.BatchStat):
                    fix = (
                        "use a layer without running averages (LayerNorm, GroupNorm),"
                        " or module.eval()"
                    )
                raise CellError(
                    f"{self.__name__} writes to {_name(path)}, {_named(kind)}, but"
                    f" nodes of a minibatch run in any order; {fix}"
                )
            raise CellError(
                f"{self.__name__} draws random numbers ({_name(path)}) but has no key;"
                " pass rng=jax.random.key(seed) where the minibatch runs, and make the"
                " cell of a module that has its streams (rngs=) already"
            )


def _named(kind: type) -> str:
    if kind is jax.Array:
        return "an array"
    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    return f"{article} {kind.__name__}"


def _run(
    method: str, args: tuple[Any, ...], kwargs: dict[str, Any], module: nnx.Module
) -> tuple[Any, dict[_Path, type]]:
    """Runs a method; also returns the variables whose arrays are others then."""
    before = _values(nnx.state(module))
    result = getattr(module, method)(*args, **kwargs)
    flat = nnx.to_flat_state(nnx.state(module))
    changed = {
        path: type(each) if isinstance(each, nnx.Variable) else jax.Array
        for path, each in flat
        if _value(each) is not before.get(path)
    }
    return result, changed


def _written(
    graph: Any, state: Any, run: Callable[[nnx.Module], Any], changed: dict[_Path, type]
) -> dict[_Path, type]:
    """Leaves out what was only handed through a transform, `nnx.remat` or `nnx.jit`."""
    leaves, structure = jax.tree.flatten(state)
    places: dict[_Path, int | None] = {}

    def after(arrays: list[Any]) -> list[Any]:
        module = nnx.merge(graph, jax.tree.unflatten(structure, arrays), copy=True)
        place = {id(each): k for k, each in enumerate(arrays)}
        before = _values(nnx.state(module))
        places.update({path: place.get(id(each)) for path, each in before.items()})
        run(module)
        found = _values(nnx.state(module))
        return [found[path] for path in changed]

    specs = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in leaves]
    body, _ = trace(after, specs)
    return {
        path: kind
        for k, (path, kind) in enumerate(changed.items())
        if (place := places.get(path)) is None or argument_of(body, k) != place
    }


def _streams(module: nnx.Module) -> list[str]:
    """Names of a module's streams of random numbers."""
    nodes = (node for _, node in nnx.iter_graph(module))
    return sorted({each.tag for each in nodes if isinstance(each, nnx.RngStream)})


def _values(state: Any) -> _Values:
    """The arrays of a state, by path."""
    return {path: _value(each) for path, each in nnx.to_flat_state(state)}


def _value(leaf: Any) -> Any:
    """The array of a variable, or an attribute that is one itself."""
    return leaf.get_value() if isinstance(leaf, nnx.Variable) else leaf


def _name(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path))
