"""Makes a service of a ready workload, to try out and measure `edbatch serve`."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from pydantic import BaseModel, create_model

from edbatch.cli.one_sentence import CommandError
from edbatch.cli.params_file import check_vocabulary, fill, read_arrays
from edbatch.cli.run import sizes_of
from edbatch.cli.task import find_workload
from edbatch.errors import DataError, shown
from edbatch.http import Service, as_json
from edbatch.models import Workload
from edbatch.models.shared.workload import Vocabularies

_EXAMPLES = 64
_Arrays = list[float] | list[list[float]] | list[list[list[float]]]


def load_workload(
    name: str, path: Path | None, hidden: int, seed: int
) -> tuple[Service, Any]:
    """Makes a service of a workload.

    Inputs are the fields of its instances. Words are numbers, or strings if the file of
    parameters has a vocabulary. A workload with a `decode` model, which follows its own
    choices, is served with that model.

    Args:
        name: The workload's name.
        path: Parameters as written by ``edbatch run --save-params``; None for random
            ones.
        hidden: Hidden size of random parameters.
        seed: Seed of random parameters.

    Returns:
        The service and its parameters.

    Raises:
        EdbatchError: There is no such workload, or the file does not fit.
    """
    arrays: dict[str, np.ndarray] = {}
    sizes: dict[str, int] = {}
    vocabulary = None
    if path is not None:
        if path.suffix != ".npz":
            raise CommandError(
                "a workload's parameters are an .npz file, as edbatch run --save-params"
                f" writes it, but this is {path}"
            )
        arrays, vocabulary = read_arrays(path)
        sizes, hidden = sizes_of(name, arrays, hidden)
    workload = find_workload(name, **sizes)
    if path is not None:
        check_vocabulary(workload, vocabulary, path)
    key = jax.random.key(seed)
    if path is None:
        params = workload.init_params(key, hidden)
    else:
        shapes = jax.eval_shape(lambda key: workload.init_params(key, hidden), key)
        params = fill(shapes, arrays, path)
    return workload_service(workload, vocabulary), params


def workload_service(workload: Workload, vocabulary: Vocabularies | None) -> Service:
    """Makes a service of a workload.

    Args:
        workload: The workload.
        vocabulary: Its vocabulary; None if inputs contain only numbers of words.

    Returns:
        The service, without parameters.
    """
    sample = workload.sample(np.random.default_rng(0), _EXAMPLES)
    kind, make = _input_of(type(sample[0]))
    return Service(
        workload.decode or workload.model,
        input=kind,
        decode=lambda found: numbered(workload, vocabulary, make(found)),
        examples=[as_json(each) for each in sample],
        name=workload.name,
    )


def numbered(workload: Workload, vocabulary: Vocabularies | None, instance: Any) -> Any:
    """Converts the words and labels of an instance to numbers, or checks the numbers.

    Args:
        workload: The workload.
        vocabulary: Its vocabulary; None if words must be numbers.
        instance: The instance.

    Returns:
        The instance with numbers.

    Raises:
        DataError: A word or a label is not a number within the parameters' range.
    """
    words = list(workload.words(instance))
    if any(isinstance(each, str) for each in words):
        if vocabulary is None:
            raise DataError(
                "words are numbers here, since the parameters came without a"
                f" vocabulary; found {shown(next(w for w in words if type(w) is str))}"
            )
        [instance] = workload.number([instance], vocabulary)
        return instance
    kinds = [("words", words, workload.vocabulary_size)]
    for each in workload.labels:
        kinds.append((each.name, [*each.of(instance)], each.numbers or each.most))
    for name, found, count in kinds:
        for one in found:
            number = int(one) if isinstance(one, str) and one.isdecimal() else one
            if not (isinstance(number, int) and 0 <= number < count):
                raise DataError(
                    f"{name} are numbers from 0 to {count - 1} where words are; found"
                    f" {shown(one)}"
                )
    return instance


def _input_of(kind: type) -> tuple[Any, Callable[[Any], Any]]:
    """Returns the type of the JSON input, and its conversion to an instance."""
    assert is_dataclass(kind), "instances are data classes"
    own = {each.name: each.type for each in fields(kind)}
    arrays = [name for name, each in own.items() if "ndarray" in str(each).lower()]
    if not arrays:
        return kind, lambda found: found
    given: dict[str, Any] = {name: (each, ...) for name, each in own.items()}
    given |= {name: (_Arrays | None, None) for name in arrays}

    def make(found: BaseModel) -> Any:
        values = {name: getattr(found, name) for name in own}
        for name in arrays:
            if values[name] is not None:
                values[name] = np.asarray(values[name], np.float32)
        return kind(**values)

    return create_model(kind.__name__, **given), make
