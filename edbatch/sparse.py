"""Sparse gradients of tables, such as embeddings: only the rows that were looked up.

The gradient of an embedding table is zero except in the rows of the words in the
minibatch, yet as an array it is as large as the table: it is allocated, zeroed,
accumulated and summed over devices, and an optimizer then updates the whole table and
its moments. `value_and_grad` returns rows and values instead, and `update` applies an
Optax optimizer to these rows only. The equivalent in PyTorch is ``sparse=True`` of
`Embedding`, with `SparseAdam` as the optimizer.

Cells are written as usual, with ``params["embedding"][word]``.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from edbatch.cell.summation import sum_dtype
from edbatch.errors import PlanError, nearest, shown
from edbatch.gradient.asked_tables import AskedTables, Probes, asking
from edbatch.row_optimizers import check_row_optimizer, parts_of_rows, update_of

if TYPE_CHECKING:
    import optax

__all__ = ["SparseRows", "update", "value_and_grad"]

Paths = str | Iterable[str | tuple[Any, ...]]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class SparseRows:
    """Sparse gradient of a table of ``N`` rows: row indices and values. A pytree.

    Attributes:
        rows: Row indices, ``[S] int32``. A row may occur several times: its gradient is
            the sum of its values. ``N`` marks unused places.
        values: Their values, ``[S, ...]``, with the table's dtype; zero in unused
            places.
        num_rows: Number of rows of the table, ``N``.

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
        return self._sum(self.rows, self.num_rows)

    def sum_duplicates(self) -> "SparseRows":
        """Returns the same gradient with each row once, in ascending order.

        Returns:
            The gradient, with the same number of places, fewer of them in use.

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
        return SparseRows(rows, self._sum(place, len(rows)), self.num_rows)

    def _sum(self, places: Array, count: int) -> Array:
        """Sums the values by place; half-precision values are summed in float32."""
        values = self.values
        sums = jnp.zeros((count, *values.shape[1:]), sum_dtype(values.dtype))
        sums = sums.at[places].add(values.astype(sums.dtype), mode="drop")
        return sums.astype(values.dtype)

    def __repr__(self) -> str:
        """Number of places, and dtype and shape of the table."""
        shape = [self.num_rows, *self.values.shape[1:]]
        return f"SparseRows({len(self.rows)} rows of {self.values.dtype}{shape})"


def value_and_grad(
    loss: Callable[..., Any], tables: Paths, *, has_aux: bool = False
) -> Callable[..., tuple[Any, Any]]:
    """Like `jax.value_and_grad`, but the gradients of some tables are `SparseRows`.

    The loss may call batched functions (`edbatch.Batched.apply`,
    `edbatch.Sharded.apply`) several times. Their cells must read the tables by whole
    rows only, as in ``table[number]`` or ``table[numbers]``, and nothing else in the
    loss may read them. The loss is traced twice, the first time without the model.

    Args:
        loss: ``loss(params, *args, **kwargs)``, returns a scalar, or a scalar and any
            pytree if `has_aux`.
        tables: The leaves of the parameters with sparse gradients: a path such as
            ``"encoder.embedding"``, as formatted by `jax.tree_util.keystr` with
            ``simple=True, separator="."``, or several such paths or JAX key paths.
            ``""`` if the parameters are one array.
        has_aux: As for `jax.value_and_grad`.

    Returns:
        A function of the loss's arguments, for use under `jax.jit`: it returns the
        loss's value and the gradient, a pytree like ``params`` with a `SparseRows` in
        place of each table.

    Raises:
        PlanError: When called: there is no such leaf, a cell or the loss reads a table
            in another way, or no batched function is called with it.

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
        leaves = _Leaves.of(params, tables)

        def run(
            others: list[Array], own: list[Array], probes: list[Probes] | None
        ) -> tuple[Any, tuple[Any, AskedTables]]:
            stand_ins = [
                _read_by_rows_only(name)(each)
                for name, each in zip(leaves.names, own, strict=True)
            ]
            asked = AskedTables(stand_ins, own, leaves.names, probes)
            with asking(asked):
                found = loss(leaves.join(others, stand_ins), *args, **kwargs)
            value, aux = found if has_aux else (found, None)
            return value, (aux, asked)

        value, aux, gradient = _differentiate(run, leaves)
        return (value, aux) if has_aux else value, gradient

    return transformed


@dataclass(frozen=True, eq=False)
class _Leaves:
    """The arrays of the parameters, split into the chosen tables and the others."""

    tree: Any
    places: list[int]  # of the tables among all arrays
    names: list[str]  # of the tables, for messages
    tables: list[Array]
    others: list[Array]

    @classmethod
    def of(cls, params: Any, tables: Paths) -> "_Leaves":
        with_paths, tree = jax.tree.flatten_with_path(params)
        places = _places(tables, [path for path, _ in with_paths])
        names = [f"params{jax.tree_util.keystr(with_paths[k][0])}" for k in places]
        leaves = [jnp.asarray(leaf) for _, leaf in with_paths]
        others = [leaf for k, leaf in enumerate(leaves) if k not in places]
        return cls(tree, places, names, [leaves[k] for k in places], others)

    def join(self, others: Iterable[Any], tables: Iterable[Any]) -> Any:
        """Rebuilds a pytree like the parameters from both kinds of arrays."""
        own, rest = dict(zip(self.places, tables, strict=True)), iter(others)
        count = self.tree.num_leaves
        return self.tree.unflatten(
            [own[k] if k in own else next(rest) for k in range(count)]
        )


def _differentiate(run: Callable[..., Any], leaves: _Leaves) -> tuple[Any, Any, Any]:
    """Returns the value, the auxiliary output, and the gradient, sparse for tables.

    Probes are zeros that are added to the rows that batched functions look up, so their
    cotangents are the values of the sparse gradients.
    """
    which: list[tuple[int, ...]] = []  # the tables that each call looks up

    def with_rows(
        others: list[Array], own: list[Array], probes: list[Probes]
    ) -> tuple[Any, Any]:
        value, (aux, asked) = run(others, own, probes)
        which[:] = [each for each, _ in asked.found]
        return value, (aux, [rows for _, rows in asked.found])

    transform = jax.value_and_grad(with_rows, argnums=(0, 1, 2), has_aux=True)
    probes = _new_probes(run, leaves)
    (value, (aux, rows)), bars = transform(leaves.others, leaves.tables, probes)
    found = []
    for number, table in enumerate(leaves.tables):
        parts = [
            (rows[call][place], bars[2][call][place])
            for call, each in enumerate(which)
            for place, one in enumerate(each)
            if one == number
        ]
        found.append(_joined(parts, table))
    return value, aux, leaves.join(bars[0], found)


def _new_probes(run: Callable[..., Any], leaves: _Leaves) -> list[Probes]:
    """Returns zeros with the shapes of the rows that the loss looks up."""

    def probe(others: list[Array], own: list[Array]) -> tuple[Any, list[Probes]]:
        value, (_, asked) = run(others, own, None)
        asked.check_passed()
        return value, asked.shapes

    _, shapes = jax.eval_shape(probe, leaves.others, leaves.tables)
    zeros: list[Probes] = jax.tree.map(
        lambda each: jnp.zeros(each.shape, each.dtype), shapes
    )
    return zeros


def update(
    optimizer: "optax.GradientTransformation",
    gradient: Any,
    state: Any,
    params: Any,
    **extra: Any,
) -> tuple[Any, Any]:
    """Applies an Optax optimizer to dense gradients and to rows of tables.

    Only those rows of a table, and of its moments, that the minibatch looked up are
    read and written. Momentum, decay of moments and weight decay therefore act on a row
    only when it is looked up, as in PyTorch's `SparseAdam` and TensorFlow's
    ``LazyAdam``. The result equals that of the dense gradient where a zero gradient
    changes nothing, as in `optax.sgd` without momentum and in `optax.adagrad`. Norms of
    the gradient (`optax.clip_by_global_norm`) are the same, too.

    Args:
        optimizer: An Optax optimizer that treats each element independently; it may use
            the norm of the whole gradient.
        gradient: The gradient, a pytree as returned by `value_and_grad`.
        state: The optimizer's state, initially ``optimizer.init(params)``.
        params: The parameters.
        **extra: Extra arguments that some optimizers take, such as ``value``, the loss;
            others ignore them. With sparse gradients the optimizer is first tried on
            small arrays, and arrays in these arguments are replaced by ones there.

    Returns:
        The parameters and the state.

    Raises:
        PlanError: The optimizer keeps an array of another shape for a table, updates a
            row differently than with the whole table, or accumulates gradients of
            several steps, as `optax.MultiSteps` does; or `state` is not one of
            its states for these parameters.

    Example:
        >>> import optax
        >>> optimizer, params = optax.sgd(0.5), {"table": jnp.zeros((3, 2))}
        >>> rows = SparseRows(jnp.array([2]), jnp.ones((1, 2)), num_rows=3)
        >>> state = optimizer.init(params)
        >>> params, state = update(optimizer, {"table": rows}, state, params)
        >>> params["table"].tolist()
        [[0.0, 0.0], [0.0, 0.0], [-0.5, -0.5]]
    """
    import optax

    apply = update_of(optimizer)
    if not any(map(_is_rows, jax.tree.leaves(gradient, is_leaf=_is_rows))):
        updates, state = apply(gradient, state, params, **extra)
        return optax.apply_updates(params, updates), state
    once = jax.tree.map(
        lambda g: g.sum_duplicates() if _is_rows(g) else g, gradient, is_leaf=_is_rows
    )
    values = jax.tree.map(
        lambda g: g.values if _is_rows(g) else g, once, is_leaf=_is_rows
    )
    owners = _owners(optimizer, state, params, once)
    leaves, tree = jax.tree.flatten(state)
    owned = [
        each.rows
        for each in jax.tree.leaves(owners, is_leaf=_is_owner)
        if not isinstance(each.leaf, optax.MaskedNode)
    ]
    parts = [_part(*each) for each in zip(leaves, owned, strict=True)]
    own = jax.tree.map(_part, params, once)
    is_table = list(map(_is_rows, jax.tree.leaves(once, is_leaf=_is_rows)))
    parts_of_state = parts_of_rows(owners, _is_of_rows)
    check_row_optimizer(optimizer, params, is_table, extra, parts_of_state)
    state = jax.tree.unflatten(tree, parts)
    updates, found = apply(values, state, own, **extra)
    updated = optax.apply_updates(own, updates)
    found = [
        _whole(old, new, rows)
        for old, new, rows in zip(leaves, jax.tree.leaves(found), owned, strict=True)
    ]
    params = jax.tree.map(_whole, params, updated, once)
    return params, jax.tree.unflatten(tree, found)


class _Owner(NamedTuple):
    """A leaf of an optimizer's state, and the gradient of the parameter it is for."""

    leaf: Any
    rows: Any


def _owners(optimizer: Any, state: Any, params: Any, gradient: Any) -> Any:
    """Pairs each leaf of an optimizer's state with its parameter's gradient."""
    import optax

    try:
        return optax.tree.map_params(
            optimizer,
            _Owner,
            state,
            gradient,
            transform_non_params=lambda each: _Owner(each, None),
            is_leaf=lambda each: isinstance(each, optax.MaskedNode),
        )
    except Exception as error:  # Optax documents no specific exception
        expected = _structure_of_state(optimizer, params)
        if expected is not None and jax.tree.structure(state) != expected:
            raise PlanError(
                "an optimizer is given the state that it returned, but this is not one"
                " of its states for these parameters; pass optimizer.init(params) at"
                " first, and after a change of the optimizer"
            ) from error
        raise PlanError(
            "an optimizer is applied to rows of a table if it keeps an array like the"
            " table, or nothing for it, but optax cannot tell what this one keeps for"
            f" which parameter ({shown(str(error), 200)}); give it labels and masks as"
            " pytrees and not as functions, use another one, or the dense gradient"
        ) from error


def _structure_of_state(optimizer: Any, params: Any) -> Any:
    try:
        return jax.tree.structure(jax.eval_shape(optimizer.init, params))
    except Exception:  # third-party code may raise anything
        return None


def _is_owner(each: Any) -> bool:
    return isinstance(each, _Owner)


def _is_of_rows(each: Any) -> bool:
    """Whether a leaf of a state belongs to a table and is not masked."""
    import optax

    return (
        isinstance(each, _Owner)
        and isinstance(each.rows, SparseRows)
        and not isinstance(each.leaf, optax.MaskedNode)
    )


def _is_rows(each: Any) -> bool:
    return isinstance(each, SparseRows)


def _part(array: Any, rows: Any) -> Any:
    """Returns the rows of an array that a sparse gradient has; all if it is dense."""
    if not isinstance(rows, SparseRows):
        return array
    expected = (rows.num_rows, *rows.values.shape[1:])
    if array.shape != expected:
        raise PlanError(
            "an optimizer is applied to rows of a table if it keeps an array like the"
            f" table, {list(expected)}, or nothing for it, but this one keeps"
            f" {list(array.shape)}; use another one, or the dense gradient"
        )
    return jnp.asarray(array).at[rows.rows].get(mode="fill", fill_value=0)


def _whole(array: Any, part: Any, rows: Any) -> Any:
    """Writes updated rows back into the whole array."""
    if not isinstance(rows, SparseRows):
        return part
    array = jnp.asarray(array)
    return array.at[rows.rows].set(part.astype(array.dtype), mode="drop")


def _places(tables: Paths, paths: list[tuple[Any, ...]]) -> list[int]:
    """Returns the positions of the chosen leaves of the parameters."""
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
    """Concatenates the lookups of all calls and all devices."""
    shape = table.shape[1:]
    if not parts:  # no cell of the minibatch looks it up
        none = jnp.zeros(0, jnp.int32)
        return SparseRows(none, jnp.zeros((0, *shape), table.dtype), len(table))
    rows = [rows.reshape(-1) for rows, _ in parts]
    values = [values.reshape(-1, *shape) for _, values in parts]
    if len(parts) == 1:
        return SparseRows(rows[0], values[0], len(table))
    return SparseRows(jnp.concatenate(rows), jnp.concatenate(values), len(table))


def _read_by_rows_only(name: str) -> Callable[[Array], Array]:
    """Returns an identity function whose result must not receive a cotangent."""

    @jax.custom_vjp
    def table(array: Array) -> Array:
        return array

    def forward(array: Array) -> tuple[Array, None]:
        return array, None

    def backward(_: None, bar: Array) -> Any:
        raise PlanError(
            f"the gradient of {name} was requested as rows and values, but the loss"
            " also reads it outside of batched functions, or hands it to one through a"
            " transformation inside, such as jax.jit or jax.checkpoint; leave it out of"
            " the tables, and its gradient is dense"
        )

    table.defvjp(forward, backward)
    return table
