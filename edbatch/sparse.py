"""Gradients of tables, such as embeddings, as the rows that were looked up.

The gradient of an embedding table is zero in all rows but those of the words that the
minibatch holds, yet as an array it is as large as the table: it is allocated, cleared,
added to, summed over devices, and an optimizer then goes through table and moments in
full. `value_and_grad` gives rows and values instead, and `update_rows` applies an
optimizer of optax to these rows alone. PyTorch has the same as ``sparse=True`` of its
`Embedding`, with `SparseAdam` as the optimizer.

Cells are written as ever, with ``params["embedding"][word]``.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array

from edbatch.errors import PlanError, nearest
from edbatch.gradient.asked_tables import AskedTables, Probes, asking

if TYPE_CHECKING:
    import optax

Paths = str | Iterable[str | tuple[Any, ...]]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class SparseRows:
    """A gradient of a table of ``N`` rows: some of its rows, with values. A pytree.

    Attributes:
        rows: Numbers of rows, ``[S] int32``. A row may stand there several times: its
            gradient is the sum of its values. ``N`` marks places that are not in use.
        values: Their values, ``[S, ...]``, of the table's dtype; zeros in places that
            are not in use.
        num_rows: ``N``.

    Example:
        >>> found = SparseRows(jnp.array([1, 1, 3]), jnp.ones((3, 2)), num_rows=3)
        >>> found.to_dense().tolist()
        [[0.0, 0.0], [2.0, 2.0], [0.0, 0.0]]
    """

    rows: Array
    values: Array
    num_rows: int = field(metadata={"static": True})

    def to_dense(self) -> Array:
        """Returns the gradient as an array of the table's shape."""
        zeros = jnp.zeros((self.num_rows, *self.values.shape[1:]), self.values.dtype)
        return zeros.at[self.rows].add(self.values, mode="drop")

    def sum_duplicates(self) -> "SparseRows":
        """Returns the same gradient with each row once, in ascending order.

        Returns:
            As many places, of which fewer are in use.

        Example:
            >>> rows = jnp.array([2, 0, 2])
            >>> once = SparseRows(rows, jnp.ones((3, 1)), num_rows=5).sum_duplicates()
            >>> once.rows.tolist(), once.values.tolist()
            ([0, 2, 5], [[1.0], [2.0], [0.0]])
        """
        rows, place = jnp.unique(
            self.rows,
            size=len(self.rows),
            fill_value=self.num_rows,
            return_inverse=True,
        )
        sums = jnp.zeros_like(self.values).at[place].add(self.values)
        return SparseRows(rows, sums, self.num_rows)

    def __repr__(self) -> str:
        """Says how many places it has, and of which table."""
        shape = [self.num_rows, *self.values.shape[1:]]
        return f"SparseRows({len(self.rows)} rows of {self.values.dtype}{shape})"


def value_and_grad(
    loss: Callable[..., Any], tables: Paths, *, has_aux: bool = False
) -> Callable[..., tuple[Any, Any]]:
    """Like `jax.value_and_grad`, with the gradient of some tables as `SparseRows`.

    The loss may call batched functions (`edbatch.Batched.apply`,
    `edbatch.Sharded.apply`) several times. Their cells must read the tables by whole
    rows only, as ``table[number]`` or ``table[numbers]`` do, and nothing else in the
    loss may read them. The loss is traced twice, the first time without the model.

    Args:
        loss: ``loss(params, *args, **kwargs)``, returns a scalar, or a scalar and any
            pytree if `has_aux`.
        tables: Which leaves of the parameters: a path such as ``"encoder.embedding"``,
            as `jax.tree_util.keystr` writes it with ``simple=True, separator="."``, or
            key paths of JAX; or several. ``""`` if the parameters are one array.
        has_aux: As for `jax.value_and_grad`.

    Returns:
        A function of the loss's arguments, for use under `jax.jit`: it returns the
        loss's value and the gradient, a pytree as ``params`` with a `SparseRows` in
        place of each table.

    Raises:
        PlanError: When called: there is no such leaf, a cell or the loss reads a table
            otherwise, or nothing looks it up.

    Example:
        >>> import edbatch as eb
        >>> @eb.cell
        ... def leaf(params, word):
        ...     return params["embedding"][word]
        >>> params = {"embedding": jnp.ones((1000, 4))}
        >>> batched = eb.batch(leaf, params=params)
        >>> plan = batched.plan([7, 3, 7])
        >>> def loss(params, plan):
        ...     return jnp.sum(batched.apply(params, plan))
        >>> value, gradient = value_and_grad(loss, "embedding")(params, plan)
        >>> once = gradient["embedding"].sum_duplicates()
        >>> once.rows[:2].tolist(), once.values[:2, 0].tolist()
        ([3, 7], [1.0, 2.0])
    """

    def transformed(params: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        with_paths, tree = jax.tree.flatten_with_path(params)
        leaves = [jnp.asarray(leaf) for _, leaf in with_paths]
        places = _places(tables, [path for path, _ in with_paths])
        names = [f"params{jax.tree_util.keystr(with_paths[k][0])}" for k in places]
        rest = [k for k in range(len(leaves)) if k not in places]

        def run(
            others: list[Array], own: list[Array], probes: list[Probes] | None
        ) -> tuple[Any, tuple[Any, AskedTables]]:
            stand_ins = [
                _read_by_rows_only(name)(each)
                for name, each in zip(names, own, strict=True)
            ]
            together = dict(zip(places, stand_ins, strict=True))
            together |= dict(zip(rest, others, strict=True))
            filled = jax.tree.unflatten(tree, [together[k] for k in range(len(leaves))])
            asked = AskedTables(stand_ins, own, names, probes)
            with asking(asked):
                found = loss(filled, *args, **kwargs)
            value, aux = found if has_aux else (found, None)
            return value, (aux, asked)

        def probe(others: list[Array], own: list[Array]) -> tuple[Any, list[Probes]]:
            value, (_, asked) = run(others, own, None)
            asked.check_looked_up()
            return value, asked.shapes

        others, own = [leaves[k] for k in rest], [leaves[k] for k in places]
        _, shapes = jax.eval_shape(probe, others, own)
        probes = jax.tree.map(lambda each: jnp.zeros(each.shape, each.dtype), shapes)
        which: list[tuple[int, ...]] = []

        def with_rows(
            others: list[Array], own: list[Array], probes: list[Probes]
        ) -> tuple[Any, Any]:
            value, (aux, asked) = run(others, own, probes)
            which[:] = [each for each, _ in asked.found]
            return value, (aux, [rows for _, rows in asked.found])

        transform = jax.value_and_grad(with_rows, argnums=(0, 1, 2), has_aux=True)
        (value, (aux, rows)), bars = transform(others, own, probes)
        found = dict(zip(rest, bars[0], strict=True))
        for number, (k, table) in enumerate(zip(places, own, strict=True)):
            parts = [
                (rows[call][place], bars[2][call][place])
                for call, each in enumerate(which)
                for place, one in enumerate(each)
                if one == number
            ]
            found[k] = _joined(parts, table)
        gradient = jax.tree.unflatten(tree, [found[k] for k in range(len(leaves))])
        return (value, aux) if has_aux else value, gradient

    return transformed


def update_rows(
    optimizer: "optax.GradientTransformation",
    gradient: SparseRows,
    state: Any,
    table: Array,
) -> tuple[Array, Any]:
    """Updates the rows of a table that a gradient has, and no others.

    Rows that the minibatch did not look up keep their values and moments: momentum and
    weight decay act on a row only when it is looked up, as in `SparseAdam` of PyTorch
    and ``LazyAdam`` of TensorFlow. Plain gradient descent gives what it gives with the
    dense gradient.

    Args:
        optimizer: An optimizer of optax that treats each element by itself, such as
            `optax.adam`.
        gradient: The gradient.
        state: The optimizer's state for this table, at first ``optimizer.init(table)``.
        table: The table, ``[N, ...]``.

    Returns:
        The table and the state.

    Example:
        >>> import optax
        >>> optimizer, table = optax.sgd(0.5), jnp.zeros((4, 2))
        >>> gradient = SparseRows(jnp.array([2]), jnp.ones((1, 2)), num_rows=4)
        >>> table, _ = update_rows(optimizer, gradient, optimizer.init(table), table)
        >>> table.tolist()
        [[0.0, 0.0], [0.0, 0.0], [-0.5, -0.5], [0.0, 0.0]]
    """
    once = gradient.sum_duplicates()

    def is_like_table(each: Any) -> bool:
        return getattr(each, "shape", None) == table.shape

    def part(each: Any) -> Any:
        if not is_like_table(each):
            return each
        return each.at[once.rows].get(mode="fill", fill_value=0)

    def whole(each: Any, new: Any) -> Any:
        if not is_like_table(each):
            return new
        return each.at[once.rows].set(new.astype(each.dtype), mode="drop")

    own = part(table)
    updates, some = optimizer.update(once.values, jax.tree.map(part, state), own)
    return whole(table, own + updates), jax.tree.map(whole, state, some)


def _places(tables: Paths, paths: list[tuple[Any, ...]]) -> list[int]:
    """Which leaves of the parameters are meant."""
    if isinstance(tables, str):
        tables = [tables]
    if not isinstance(tables, Iterable):
        raise PlanError(
            "tables of value_and_grad are paths in the parameters, such as"
            f" 'embedding', but it received {type(tables).__name__}"
        )
    known = {
        jax.tree_util.keystr(path, simple=True, separator="."): k
        for k, path in enumerate(paths)
    }
    found = []
    for each in tables:
        if isinstance(each, str):
            name = each
        else:
            name = jax.tree_util.keystr(tuple(each), simple=True, separator=".")
        if name not in known:
            raise PlanError(
                f"{name!r} names no array of the parameters; {nearest(name, known)}"
            )
        found.append(known[name])
    if not found:
        raise PlanError(
            "value_and_grad of edbatch.sparse takes at least one table; for a gradient"
            " without sparse tables, use jax.value_and_grad"
        )
    return sorted(set(found))


def _joined(parts: list[tuple[Array, Array]], table: Array) -> SparseRows:
    """The lookups of all calls, and of all devices, one after the other."""
    shape = table.shape[1:]
    rows = [rows.reshape(-1) for rows, _ in parts]
    values = [values.reshape(-1, *shape) for _, values in parts]
    if len(parts) == 1:
        return SparseRows(rows[0], values[0], len(table))
    return SparseRows(jnp.concatenate(rows), jnp.concatenate(values), len(table))


def _read_by_rows_only(name: str) -> Callable[[Array], Array]:
    """An identity whose result may not be differentiated by."""

    @jax.custom_vjp
    def table(array: Array) -> Array:
        return array

    def forward(array: Array) -> tuple[Array, None]:
        return array, None

    def backward(_: None, bar: Array) -> Any:
        raise PlanError(
            f"the gradient of {name} was asked for as rows and values, but the loss"
            " also reads it outside of batched functions, or hands it to one through a"
            " transformation inside, such as jax.jit or jax.checkpoint; leave it out of"
            " the tables, and its gradient is dense"
        )

    table.defvjp(forward, backward)
    return table
