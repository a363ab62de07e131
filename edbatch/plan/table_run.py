"""Implements the protocol `TableRun` of `edbatch.gradient.asked_tables` for a plan."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from jax import Array

from edbatch.gradient.asked_tables import Probes
from edbatch.gradient.differentiable import zero_results
from edbatch.gradient.tables import Table, find_tables, new_probes
from edbatch.graph.output_tree import ResultShape
from edbatch.graph.type_table import TypeTable
from edbatch.plan.plan import Plan
from edbatch.plan.run import compute_results_and_lookups


class PlanTableRun(NamedTuple):
    """The run of a plan.

    Attributes:
        plan: The plan.
        rng: As for `run_plan`.
    """

    plan: Plan
    rng: Any

    def tables(self, leaves: Sequence[int]) -> tuple[Table, ...]:
        """Finds the lookups in some leaves of the parameters."""
        return find_tables(self.plan.shape.program, leaves)

    def new_probes(self, tables: tuple[Table, ...], params: Any) -> Probes:
        """Returns zeros, one row per lookup, for each table."""
        return new_probes(self.plan.shape.program, tables, params)

    def results(self) -> Any:
        """Returns zeros of the same shapes as the results of `run`."""
        shape, plan = self.plan.shape, self.plan
        return assembled_zeros(
            shape.result, shape.program.types, plan.rows, plan.lengths
        )

    def run(
        self, params: Any, tables: tuple[Table, ...], probes: Probes
    ) -> tuple[Any, Probes]:
        """Returns the model's results, and the numbers of the rows looked up."""
        results, looked_up = compute_results_and_lookups(
            params, self.plan, self.rng, tables, probes
        )
        return self.plan.shape.result.assemble(results, self.plan.lengths), looked_up


def assembled_zeros(
    shape: ResultShape,
    types: TypeTable,
    rows: Sequence[Array],
    lengths: tuple[Array, ...],
) -> Any:
    """Returns zeros of the same shapes as the results of a run.

    Args:
        shape: The static part of the result.
        types: The model's types.
        rows: Rows per leaf.
        lengths: As `Plan.lengths`.

    Returns:
        The model's pytree with a leading axis over instances.
    """
    kinds = [kind for _, kind in shape.tree.leaves]
    return shape.assemble(zero_results(types, kinds, rows), lengths)
