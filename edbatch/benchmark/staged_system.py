"""Base class of the systems whose program is written for one kind of graph.

These systems first record the model as edbatch does, since a hand-written program has
to traverse the instances as well. Then they arrange arrays with NumPy.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from edbatch.errors import UnsupportedError
from edbatch.graph import DataflowGraph, TypeTable, record
from edbatch.graph.call_memory import CallMemory
from edbatch.graph.parameter_structure import abstract
from edbatch.instance_results import split_instances
from edbatch.plan.run import take_results


class StagedSystem(ABC):
    """A system that plans from recordings; subclasses implement the planning.

    Attributes:
        model: The model for one instance.
        params: Its parameters.
    """

    def __init__(self, model: Callable[[Any, Any], Any], params: Any) -> None:
        self.model = model
        self.params = params
        self._types = TypeTable(abstract(params))
        self._memory = CallMemory()

    def record(self, instances: Sequence[Any]) -> list[DataflowGraph]:
        """Records the model on each instance.

        Raises:
            UnsupportedError: A cell of the model draws random numbers.
        """
        found = [
            record(self.model, self._types, [each], self._memory) for each in instances
        ]
        draw = {each.key.cell for each in self._types.types if each.takes_rng}
        if draw:
            raise UnsupportedError(
                f"it passes no random keys to cells, but {', '.join(sorted(draw))} can"
                " draw random numbers"
            )
        return found

    @abstractmethod
    def plan(self, recordings: Sequence[DataflowGraph]) -> Any:
        """Merges recordings and prepares the minibatch for `forward`, on the host."""

    @abstractmethod
    def forward(self, plan: Any) -> Any:
        """Computes the outputs of a minibatch."""

    @abstractmethod
    def train(self, plan: Any) -> tuple[Array, Any]:
        """Computes `half_squares` of the outputs of a minibatch, and its gradient."""

    @abstractmethod
    def results(self, plan: Any, outcome: Any) -> list[Any]:
        """Converts the outcome of `forward` to the model's result for each instance."""


def instance_results(graph: DataflowGraph, columns: Sequence[Array]) -> list[Any]:
    """Splits the outputs of a minibatch by instance.

    Args:
        graph: The minibatch.
        columns: The values of each of `graph.outputs.values()`, ``[n or more, ...]``.

    Returns:
        The model's result for each instance.
    """
    values: dict[int, np.ndarray] = {}
    for (kind, ids), found in zip(graph.outputs.values(), columns, strict=True):
        space = np.zeros((graph.num_values, *found.shape[1:]), found.dtype)
        values.setdefault(kind, space)[ids] = found[: len(ids)]
    outputs = graph.outputs
    identity = np.arange(graph.num_values, dtype=np.int32)
    shape = outputs.describe(graph.num_instances)
    rows = shape.pad(outputs.locate(identity), lambda _, size: size)
    gathered = take_results(
        shape,
        tuple(map(jnp.asarray, rows.rows)),
        {kind: jnp.asarray(each) for kind, each in values.items()},
        {
            kind: jnp.concatenate([jnp.zeros_like(pool[:1]), pool])
            for kind, pool in graph.externals.items()
        },
    )
    result = shape.assemble(gathered, tuple(map(jnp.asarray, rows.lengths)))
    return split_instances(result, graph.num_instances)
