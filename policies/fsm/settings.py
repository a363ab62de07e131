"""The settings of a training, their checks, and the trials to evaluate after."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

from edbatch.arguments import check_type, is_number, is_real
from edbatch.errors import PolicyError, shown
from edbatch.graph.node_type import TypeKey
from edbatch.graph.structure import GraphStructure
from edbatch.policies.fsm.encoding import encoding_id

_EVALUATIONS = 40
_WHOLE = ("trials", "n_step", "generations", "patience")


@dataclass(frozen=True)
class Settings:
    """The arguments of `train_policy` that determine the result."""

    encoding: str
    trials: int
    seed: int
    n_step: int
    alpha: float
    learning_rate: float
    epsilon: float
    generations: int
    patience: int

    def check(
        self, graphs: Sequence[GraphStructure], held_out: Sequence[GraphStructure]
    ) -> None:
        """Checks the settings and the minibatches; raises `PolicyError`."""
        self.check_ranges()
        for name, what in (("graphs", graphs), ("held_out", held_out)):
            if not what:
                raise PolicyError(
                    f"training needs at least one minibatch in each of 'graphs' and"
                    f" 'held_out' but {name!r} is empty; sample some more"
                )
            for each in what:
                check_type(
                    *(PolicyError, f"a minibatch in {name!r}", each, GraphStructure),
                    "the structure of a graph, as batched.graph(instances).structure",
                )

    def as_json(self) -> dict[str, Any]:
        """Returns the settings as JSON values; NumPy numbers become Python numbers."""
        return {name: np.asarray(value).item() for name, value in vars(self).items()}

    def check_ranges(self) -> None:
        """Checks the settings without minibatches; raises `PolicyError`."""
        encoding_id(self.encoding)
        for name, low, high in (
            ("trials", 1, math.inf),
            ("n_step", 1, math.inf),
            ("alpha", 0, math.inf),
            ("learning_rate", 0, 1),
            ("epsilon", 0, 1),
            ("generations", 0, math.inf),
            ("patience", 1, math.inf),
        ):
            value = getattr(self, name)
            if not is_real(value):
                raise PolicyError(
                    f"{name!r} is a number but is {shown(value)}; leave it out for the"
                    " default"
                )
            if not low <= value <= high:
                raise PolicyError(
                    f"{name!r} is between {low} and {high} but is {value!r}; leave it"
                    " out for the default"
                )
            if name in _WHOLE and not isinstance(value, Integral):
                raise PolicyError(
                    f"{name!r} is a whole number but is {value!r}; leave it out for the"
                    " default"
                )
            if name not in _WHOLE and not is_number(value):
                raise PolicyError(
                    f"{name!r} is a finite number but is {shown(value)}; leave it out"
                    " for the default"
                )


def common_types(graphs: Sequence[GraphStructure]) -> tuple[TypeKey, ...]:
    """Finds the types of graphs that one model recorded at different times.

    Returns:
        The longest of their tuples of types; all others are prefixes of it.

    Raises:
        PolicyError: The types of some graph are not a prefix of it.

    Example:
        >>> from edbatch.schedule.examples import chain
        >>> [str(key) for key in common_types([chain("a"), chain("ab")])]
        ['a/0', 'b/0']
    """
    types = max((each.type_keys for each in graphs), key=len)
    for k, each in enumerate(graphs):
        if each.type_keys != types[: len(each.type_keys)]:
            [strange, *_] = [
                ours
                for ours, theirs in zip(each.type_keys, types, strict=False)
                if ours != theirs
            ]
            raise PolicyError(
                "the graphs of one training have the types of one model, in one order,"
                f" but graph {k} has {strange} where another has"
                f" {types[each.type_keys.index(strange)]}; record all of them with the"
                " same batched function"
            )
    return types


@functools.cache
def evaluations(trials: int) -> frozenset[int]:
    """Trials after which to evaluate: often at first, then evenly, and at the end."""
    every = math.ceil(trials / _EVALUATIONS)
    early = (2**k for k in range(every.bit_length()))
    return frozenset((*early, *range(every, trials, every), trials))
