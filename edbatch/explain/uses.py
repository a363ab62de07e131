"""Counts of a minibatch: by type, by batch, and in total."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from edbatch.compilation.record import Compilation
from edbatch.explain.apart import Apart
from edbatch.graph.node_type import TypeKey
from edbatch.plan.report import PlanReport

TimeSource = Literal["measured", "predicted"]


@dataclass(frozen=True)
class TypeUse:
    """Costs of the nodes of one type in one minibatch.

    Attributes:
        type: The type.
        hoisted: Whether these are the hoisted products of the type's external inputs,
            which run before the rest; False for the type itself.
        nodes: Number of nodes.
        batches: Number of batches.
        chain: Minimum number of batches in any schedule: the largest number of nodes of
            the type on any path; 0 for hoisted products.
        chunks: Number of chunks by their width, in rows, ascending.
        operands: Operand slots of all chunks.
        in_place: Operand slots that are one contiguous slice of an arena.
        operand_bytes: Bytes that the nodes read from arenas.
        in_place_bytes: Operand bytes that are in place.
        flops: Multiplications and additions of the nodes' matrix products, as the cell
            is written and without padding.
        time_us: Microseconds, or None.

    Example:
        >>> import edbatch as eb
        >>> @eb.cell
        ... def double(params, x):
        ...     return params * x
        >>> def model(params, x):
        ...     return double(params, double(params, x))
        >>> batched = eb.batch(model, params=2.0)
        >>> [first, then] = batched.explain([1.0, 5.0]).types
        >>> first.nodes, first.batches, then.chain
        (2, 1, 1)
    """

    type: TypeKey
    hoisted: bool
    nodes: int
    batches: int
    chain: int
    chunks: dict[int, int]
    operands: int
    in_place: int
    operand_bytes: int
    in_place_bytes: int
    flops: int
    time_us: float | None = None

    @property
    def name(self) -> str:
        """The type as text for people."""
        return f"{self.type} (hoisted)" if self.hoisted else str(self.type)

    @property
    def rows(self) -> int:
        """Rows computed, including padding rows."""
        return sum(width * count for width, count in self.chunks.items())

    @property
    def padding_rows(self) -> int:
        """Padding rows computed."""
        return self.rows - self.nodes


@dataclass(frozen=True, eq=False)
class BatchUses:
    """The ``S`` batches of one minibatch, in the order in which they run.

    Attributes:
        use: The position of each batch's `TypeUse`.
        nodes: Nodes of each batch.
        rows: Rows that each batch computes.
        time_us: Microseconds of each batch; None if they are not known.

    Example:
        >>> import edbatch as eb
        >>> @eb.cell
        ... def double(params, x):
        ...     return params * x
        >>> def model(params, x):
        ...     return double(params, double(params, x))
        >>> batched = eb.batch(model, params=2.0)
        >>> batched.explain([1.0, 5.0]).batches.nodes.tolist()
        [2, 2]
    """

    use: np.ndarray  # [S] int64
    nodes: np.ndarray  # [S] int64
    rows: np.ndarray  # [S] int64
    time_us: np.ndarray | None = None  # [S] float64

    def __repr__(self) -> str:
        """Summary in one line."""
        return f"<BatchUses: {len(self)} batches of {int(self.nodes.sum())} nodes>"

    def __len__(self) -> int:
        """Number of batches, S."""
        return len(self.use)


@dataclass(frozen=True, eq=False)
class MinibatchUse:
    """Costs of a minibatch, type by type, and the types that share no batch, and why.

    Attributes:
        model: Name of the model.
        instances: Number of instances in the minibatch.
        types: Costs of each type, in the order in which recordings met the types.
        model_types: All types of the model so far, including those that the minibatch
            lacks.
        batches: The batches.
        lower_bound: Minimum number of batches in any schedule.
        apart: Types of one cell that share no batch, and why.
        plan: Counts of the plan.
        loops: Number of loops of the compiled program.
        time_source: Where the times come from; None if there are no times.
        compilations: Compilations for direct calls of the function so far.

    Example:
        >>> import edbatch as eb
        >>> @eb.cell
        ... def double(params, x):
        ...     return params * x
        >>> def model(params, x):
        ...     return double(params, double(params, x))
        >>> batched = eb.batch(model, params=2.0)
        >>> isinstance(batched.explain([1.0, 5.0]), MinibatchUse)
        True
    """

    model: str
    instances: int
    types: tuple[TypeUse, ...]
    model_types: tuple[TypeKey, ...]
    batches: BatchUses
    lower_bound: int
    apart: tuple[Apart, ...]
    plan: PlanReport
    loops: int
    time_source: TimeSource | None = None
    compilations: tuple[Compilation, ...] = ()

    def __repr__(self) -> str:
        """Summary in one line."""
        return f"<MinibatchUse: {self.plan.nodes} nodes in {self.plan.batches} batches>"

    @property
    def flops(self) -> int:
        """Multiplications and additions of all matrix products, without padding."""
        return sum(each.flops for each in self.types)

    @property
    def time_us(self) -> float | None:
        """Microseconds of all batches; None if they are not known."""
        times = self.batches.time_us
        return None if times is None else float(times.sum())
