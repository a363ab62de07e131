"""The registry of ready workloads: the modules of the package `edbatch.models`."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from edbatch.errors import WorkloadError, nearest, shown
from edbatch.models.shared.workload import Workload

_PACKAGE = "edbatch.models"
_FOLDER = Path(__file__).parents[1]


class Workloads(Mapping[str, Callable[..., Workload]]):
    """Builders of the ready workloads, by name.

    Listing the names imports no workload; looking one up imports its module.

    Example:
        >>> "tree-lstm" in WORKLOADS
        True
        >>> WORKLOADS["tree-lstm"](vocabulary_size=100).vocabulary_size
        100
    """

    def __init__(self) -> None:
        self._modules = {
            module.name.replace("_", "-"): module.name
            for module in pkgutil.iter_modules([str(_FOLDER)])
            if not module.ispkg
        }

    def __getitem__(self, name: str) -> Callable[..., Workload]:
        module = importlib.import_module(f"{_PACKAGE}.{self._modules[name]}")
        build: Callable[..., Workload] = module.workload
        return build

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


WORKLOADS = Workloads()


def get_workload(name: str, **options: Any) -> Workload:
    """Builds a ready workload.

    Args:
        name: One of `WORKLOADS`.
        **options: Options of the builder, ``edbatch.models.<module>.workload``. All
            builders take ``vocabulary_size``, the number of words; classifiers take
            ``num_labels``, ``num_tags`` or ``num_answers``, the number of classes.

    Returns:
        The workload.

    Raises:
        WorkloadError: The workload or an option is unknown, or a value is not allowed.

    Example:
        >>> import numpy as np
        >>> workload = get_workload("bilstm-tagger", vocabulary_size=50)
        >>> [sentence] = workload.sample(np.random.default_rng(0), 1)
        >>> max(sentence.words) < 50
        True
    """
    if name not in WORKLOADS:
        hint = nearest(str(name), WORKLOADS)
        hint = f"{hint}; " if hint.startswith("did you mean") else ""
        raise WorkloadError(
            f"there is no workload {shown(name)}; {hint}all are {', '.join(WORKLOADS)}"
        )
    build = WORKLOADS[name]
    known = inspect.signature(build).parameters
    for option, value in options.items():
        if option not in known:
            raise WorkloadError(
                f"workload {name!r} has no option {option!r}; {nearest(option, known)}"
            )
        if isinstance(known[option].default, int):
            _check_count(name, option, value)
    return build(**options)


def _check_count(name: str, option: str, value: Any) -> None:
    if not isinstance(value, int) or value < 1:
        raise WorkloadError(
            f"option {option!r} of {name!r} is a whole number, 1 or more, but this is"
            f" {value!r}; leave it out for the default"
        )
