"""The tables whose gradient `edbatch.sparse.value_and_grad` returns as rows.

While a loss is traced, batched functions query `AskedTables` to find out whether one of
their parameters is such a table. A loss is traced twice: first to find how many rows
each call of a batched function looks up, which gives the shapes of the probes (see
`tables`); then with the probes.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import jax
from jax import Array

from edbatch.cell.jaxpr import trace_state
from edbatch.errors import PlanError
from edbatch.gradient.tables import Table

Probes = tuple[Array, ...]


class TableRun(Protocol):
    """A call of a batched function that can list its lookups in tables."""

    def tables(self, leaves: Sequence[int]) -> tuple[Table, ...]:
        """Finds the lookups in some leaves of the parameters."""

    def new_probes(self, tables: tuple[Table, ...], params: Any) -> Probes:
        """Returns zeros, one row per lookup, for each table."""

    def results(self) -> Any:
        """Returns zeros in the shapes of the model's results."""

    def run(
        self, params: Any, tables: tuple[Table, ...], probes: Probes
    ) -> tuple[Any, Probes]:
        """Returns the model's results and the indices of the rows looked up."""


class AskedTables:
    """The tables requested while a loss is traced.

    Args:
        stand_ins: Placeholders for the tables in the loss's parameters.
        arrays: The tables.
        names: Their names in messages.
        probes: The probes of each call of a batched function; None until their shapes
            are known.

    Attributes:
        shapes: For each call so far, zeros in the shapes of its probes.
        found: For each call, which tables it looked up, and the row indices.
    """

    def __init__(
        self,
        stand_ins: Sequence[Array],
        arrays: Sequence[Array],
        names: Sequence[str],
        probes: Sequence[Probes] | None = None,
    ) -> None:
        self._stand_ins = stand_ins
        self._arrays = arrays
        self._names = names
        self._probes = probes
        self._state = trace_state()
        self._passed: set[int] = set()  # to a batched function
        self.shapes: list[Probes] = []
        self.found: list[tuple[tuple[int, ...], Probes]] = []

    def places(self, params: Any) -> dict[int, int]:
        """Finds the requested tables among the parameters of a call.

        Args:
            params: The parameters.

        Returns:
            The number of the table, by leaf of the parameters.
        """
        known = {id(each): k for k, each in enumerate(self._stand_ins)}
        leaves = jax.tree.leaves(params)
        return {k: known[id(x)] for k, x in enumerate(leaves) if id(x) in known}

    def call(self, params: Any, run: TableRun) -> Any:
        """Runs a call whose parameters contain requested tables.

        Args:
            params: The parameters, with placeholders.
            run: The call.

        Returns:
            The model's results.

        Raises:
            PlanError: A cell reads a table other than by rows, or a JAX transformation
                inside the loss traces the call.
        """
        places = self.places(params)
        self._passed.update(places.values())
        if trace_state() != self._state:
            raise PlanError(
                f"the gradient of {self._names[next(iter(places.values()))]} was"
                " requested as rows and values, but a batched function was called with"
                " it inside another transformation of the loss, such as jax.lax.scan,"
                " jax.lax.cond, jax.vmap or jax.jit; call it in the loss itself, or"
                " leave this table out to get a dense gradient"
            )
        leaves, tree = jax.tree.flatten(params)
        for leaf, which in places.items():
            leaves[leaf] = jax.lax.stop_gradient(self._arrays[which])
        params = jax.tree.unflatten(tree, leaves)
        tables = tuple(each for each in run.tables(tuple(places)) if each.lookups)
        own = tuple(places[each.leaf] for each in tables)
        if self._probes is None:
            probes = run.new_probes(tables, params)
            self.shapes.append(probes)
            self.found.append((own, ()))
            return run.results()
        results, rows = run.run(params, tables, self._probes[len(self.found)])
        self.found.append((own, rows))
        return results

    def check_passed(self) -> None:
        """Raises a `PlanError` for a table that no batched function was called with.

        A table that was passed to a batched function, but in which no cell looks up a
        row, is no error: its gradient has no rows.
        """
        for k, name in enumerate(self._names):
            if k not in self._passed:
                raise PlanError(
                    f"the gradient of {name} was requested as rows and values, but no"
                    " batched function was called with it inside the loss; pass it on"
                    " unchanged, and not through a jax.jit or jax.checkpoint inside the"
                    " loss"
                )


_ASKED: ContextVar[AskedTables | None] = ContextVar("asked_tables", default=None)


@contextmanager
def asking(asked: AskedTables) -> Iterator[None]:
    """Makes batched functions called inside look up the requested tables.

    Args:
        asked: The tables.
    """
    token = _ASKED.set(asked)
    try:
        yield
    finally:
        _ASKED.reset(token)


def asked_of(params: Any) -> AskedTables | None:
    """Returns the requested tables if some are among the parameters of a call."""
    asked = _ASKED.get()
    return asked if asked is not None and asked.places(params) else None
