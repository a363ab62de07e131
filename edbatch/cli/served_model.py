"""Loads the service of `edbatch serve --model` and its parameters."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from edbatch.batched import Batched
from edbatch.cli import user_code
from edbatch.cli.one_sentence import CommandError
from edbatch.cli.params_file import fill, named, read_arrays
from edbatch.errors import shown
from edbatch.http import Service
from edbatch.limits import UnreadableError, read_bytes

_FORMATS = (
    "an .npz file of arrays by dotted path, a .msgpack file of flax.serialization, or a"
    " folder of orbax"
)


def load_service(name: str) -> Service:
    """Loads the service that a user named.

    Args:
        name: ``package.module:name`` of a service, of a function that returns one, or
            of a model.

    Returns:
        The service.

    Raises:
        CommandError: There is no such object, or it is none of these.
    """
    found = user_code.find("--model", name)
    if isinstance(found, type) or not (
        isinstance(found, Service | Batched) or callable(found)
    ):
        raise CommandError(
            "--model names an edbatch.http.Service, a function that returns one, or a"
            f" model(params, instance), but {name!r} is {shown(found)}"
        )
    if not isinstance(found, Service | Batched) and _takes_nothing(found):
        found = user_code.call("--model", found)
        if not isinstance(found, Service):
            raise CommandError(
                f"the function {name!r} of --model takes nothing, so it must return an"
                f" edbatch.http.Service, but it returned {shown(found)}"
            )
    return found if isinstance(found, Service) else Service(found)


def _takes_nothing(function: Any) -> bool:
    try:
        return not inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def load_params(service: Service, path: Path | None, seed: int) -> Any:
    """Reads or initializes the parameters of a service.

    Args:
        service: The service.
        path: A file or a folder; None to initialize the parameters.
        seed: Seed of the initialization.

    Returns:
        The parameters.

    Raises:
        CommandError: The parameters cannot be read or initialized.
    """
    key = jax.random.key(seed)
    init = service.init_params
    if path is None:
        if init is None:
            raise CommandError(
                f"the service {service.name!r} has no init_params, so it needs its"
                " parameters from a file; give --params FILE"
            )
        return user_code.call("init_params", init, key)
    if not path.exists():
        raise CommandError(f"--params names {path}, which does not exist")
    if service.load_params is not None:
        return user_code.call("load_params", service.load_params, path)
    arrays = _read(path)
    if init is None:
        return nested(arrays)
    shapes = jax.eval_shape(lambda key: user_code.call("init_params", init, key), key)
    fix = "its init_params makes parameters of another size: make both alike"
    return fill(shapes, arrays, path, fix)


def _read(path: Path) -> dict[str, np.ndarray]:
    """Reads arrays by dotted path from any of the formats."""
    if path.suffix == ".npz":
        return read_arrays(path)[0]
    try:
        if path.is_dir():
            import orbax.checkpoint as ocp

            with ocp.StandardCheckpointer() as reader:
                tree = reader.restore(path.absolute())
        else:
            from flax.serialization import msgpack_restore

            tree = msgpack_restore(read_bytes(path))
    except (Exception, UnreadableError) as error:  # the libraries raise many classes
        text = (str(error).splitlines() or [type(error).__name__])[0]
        raise CommandError(
            f"--params takes {_FORMATS}, but {path} cannot be read as one:"
            f" {text[:200]}; a Service with load_params reads anything else"
        ) from error
    if not isinstance(tree, Mapping | list | tuple):
        raise CommandError(
            f"--params takes {_FORMATS}, but {path} holds a {type(tree).__name__} and"
            " no parameters by name"
        )
    return {name: np.asarray(leaf) for name, leaf in named(tree)}


def nested(arrays: Mapping[str, np.ndarray]) -> Any:
    """Builds nested dicts and lists from dotted paths.

    Args:
        arrays: Arrays by dotted path. A level whose names are 0, 1, ... becomes a list.

    Returns:
        The nested parameters.

    Example:
        >>> nested({"exit.W": 1, "layers.0.W": 2, "layers.1.W": 3})
        {'exit': {'W': 1}, 'layers': [{'W': 2}, {'W': 3}]}
    """
    found: dict[str, dict[str, Any]] = {}
    leaves: dict[str, Any] = {}
    for name, value in arrays.items():
        first, dot, rest = name.partition(".")
        if dot:
            found.setdefault(first, {})[rest] = value
        else:
            leaves[first] = value
    tree = leaves | {name: nested(below) for name, below in found.items()}
    if {*tree} == {str(k) for k in range(len(tree))} and tree:
        return [tree[str(k)] for k in range(len(tree))]
    return tree
