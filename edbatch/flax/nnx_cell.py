"""An nnx module as the function of a cell."""

from typing import Any

import jax
from flax import nnx

from edbatch.cell.module_writes import WatchedModules, effective_writes
from edbatch.errors import CellError
from edbatch.flax.signature import cell_name, find_method, function_signature
from edbatch.flax.streams import stream_keys
from edbatch.graph.cell import RNG

_Path = tuple[Any, ...]


class NnxFunction:
    """Runs a method of an nnx module on its parameters; a pure function.

    Args:
        module: The module. Its structure is kept, but not its parameters.
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
        self._paths = _paths_of(params)

    def __call__(self, params: Any, *args: Any, **kwargs: Any) -> Any:
        """Runs the method for one instance."""
        rng: Any = kwargs.pop(RNG, None) if self._streams else None
        module = self._module(params)
        if self._streams and rng is None:
            module.eval()
        elif self._streams:
            keys: dict[str, Any] = stream_keys(rng, self._streams)
            nnx.reseed(module, **keys)
        graph, state = nnx.split(module)
        arrays, structure = jax.tree.flatten(state)

        def run(*arrays: Any) -> tuple[Any, WatchedModules]:
            again = jax.tree.unflatten(structure, arrays)
            return self._watched(nnx.merge(graph, again, copy=True), args, kwargs)

        result, watched = self._watched(module, args, kwargs)
        written = watched.written()
        if any(written):
            found = effective_writes(
                run, [jax.typeof(each) for each in arrays], written
            )
            self._check_unchanged([*found, *written.attributes], is_random=rng is None)
        return result

    def _watched(
        self, module: nnx.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, WatchedModules]:
        """Runs the method; returns its result and the module's state before it."""
        watched = WatchedModules(module)
        return getattr(module, self._method)(*args, **kwargs), watched

    def _module(self, params: Any) -> nnx.Module:
        """Returns a copy of the module, so that the caller's is not written to."""
        if isinstance(params, nnx.Module):
            return nnx.merge(*nnx.split(params), copy=True)
        if not isinstance(params, nnx.State):
            raise self._wrong_params(type(params).__name__)
        own = nnx.filter_state(params, nnx.Not(nnx.RngState))
        found = _paths_of(own)
        if missing := sorted(map(_name, self._paths - found)):
            raise self._wrong_params(f"a state without {missing[0]}")
        if odd := sorted(map(_name, found - self._paths)):
            raise self._wrong_params(
                f"a state with {odd[0]}, which this module does not have"
            )
        return nnx.merge(self._graph, self._rng_state, own, copy=True)

    def _wrong_params(self, found: str) -> CellError:
        return CellError(
            f"{self.__name__} takes the module or all of its state as first argument,"
            f" but received {found}; pass the module, or nnx.state(module), of this"
            " module alone (nnx.state(module, nnx.Param) if it has parameters alone)"
        )

    def _check_unchanged(
        self, written: list[tuple[str, type]], *, is_random: bool
    ) -> None:
        """Raises an error that names the first part that was written to."""
        for name, kind in written:
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
                    f"{self.__name__} writes to {name}, {_named(kind)}, but"
                    f" nodes of a minibatch run in any order; {fix}"
                )
            if is_random:
                raise CellError(
                    f"{self.__name__} draws random numbers ({name}) but has no key;"
                    " pass rng=jax.random.key(seed) where the minibatch runs, and make"
                    " the cell of a module that has its streams (rngs=) already"
                )


def _named(kind: type) -> str:
    if kind is jax.Array:
        return "an array"
    if not issubclass(kind, nnx.Variable):
        return "an attribute"
    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    return f"{article} {kind.__name__}"


def _streams(module: nnx.Module) -> list[str]:
    """Returns the names of a module's streams of random numbers."""
    nodes = (node for _, node in nnx.iter_graph(module))
    return sorted({each.tag for each in nodes if isinstance(each, nnx.RngStream)})


def _paths_of(state: Any) -> set[_Path]:
    return {path for path, _ in nnx.to_flat_state(state)}


def _name(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path))
