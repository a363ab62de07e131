"""Whether an optimizer may be applied to some rows of a table alone.

It has to treat each element by itself, but for what it takes of the norm of the whole
gradient, which rows of zeros do not change. Others give other numbers for rows than for
the table, without an error: `optax.lamb` divides by the norm of a parameter,
`optax.clip_by_block_rms` by the number of its elements, which here are those of the
rows and of the places that are not in use. So an optimizer is tried on small arrays.
"""

import weakref
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from edbatch.errors import PlanError

if TYPE_CHECKING:
    import optax

_ROWS, _LOOKED_UP, _MOST = 7, (1, 4), 3  # rows and columns of the arrays
_PLACES = 5  # of which two are in use

# Structures that an optimizer was tried on, by its function, for as long as that lives.
_TRIED: "weakref.WeakKeyDictionary[Any, dict[Hashable, bool]]"
_TRIED = weakref.WeakKeyDictionary()

Part = Callable[[Any], Any]


def check_row_optimizer(
    optimizer: "optax.GradientTransformation", params: Any, is_table: list[bool]
) -> None:
    """Checks, once, that an optimizer gives rows of a table what it gives the table.

    Args:
        optimizer: An optimizer of optax.
        params: The parameters, for their structure, dtypes and numbers of axes.
        is_table: For each of their arrays, whether rows of it are updated.

    Raises:
        PlanError: It does not.
    """
    leaves, tree = jax.tree.flatten(params)
    kinds = tuple((jnp.ndim(each), str(jnp.result_type(each))) for each in leaves)
    tried = _TRIED.setdefault(optimizer.update, {})
    key = tree, kinds, tuple(is_table)
    if key not in tried:
        with jax.ensure_compile_time_eval():
            tried[key] = _is_the_same(optimizer, tree, kinds, is_table)
    if not tried[key]:
        raise PlanError(
            "an optimizer is applied to rows of a table if it treats each element by"
            " itself, but this one gives a row something else than it does with the"
            " whole table; leave out what divides by norms or sizes of parameters or"
            " adds noise (optax.lamb, lars, adaptive_grad_clip, clip_by_block_rms,"
            " add_noise), or use the dense gradient"
        )


def _is_the_same(
    optimizer: "optax.GradientTransformation",
    tree: Any,
    kinds: tuple[tuple[int, str], ...],
    is_table: list[bool],
) -> bool:
    """Whether two steps on rows are those on tables, in the rows that change."""
    random = np.random.default_rng(0)
    shapes = [
        (_ROWS, *(_MOST,) * (ndim - 1)) if table else (_MOST,) * ndim
        for (ndim, _), table in zip(kinds, is_table, strict=True)
    ]

    def sample(scale: float) -> Any:
        return tree.unflatten(
            [
                jnp.asarray(scale * random.standard_normal(shape), dtype)
                for shape, (_, dtype) in zip(shapes, kinds, strict=True)
            ]
        )

    def of_tables(change: Part, pytree: Any) -> Any:
        found = jax.tree.leaves(pytree)
        return tree.unflatten(
            [
                change(each) if table else each
                for each, table in zip(found, is_table, strict=True)
            ]
        )

    used = np.array(_LOOKED_UP)
    rows = np.full(_PLACES, _ROWS)
    rows[: len(used)] = used

    def part(table: Any) -> Any:
        return jnp.asarray(table).at[rows].get(mode="fill", fill_value=0)

    def only_used(table: Any) -> Any:
        return jnp.zeros_like(table).at[used].set(table[used])

    params, gradient = sample(2.0), of_tables(only_used, sample(1.0))
    whole, _ = optimizer.update(gradient, optimizer.init(params), params)
    own = of_tables(part, params)
    few, _ = optimizer.update(of_tables(part, gradient), optimizer.init(own), own)
    pairs = zip(
        jax.tree.leaves(of_tables(lambda each: each[used], whole)),
        jax.tree.leaves(of_tables(lambda each: each[: len(used)], few)),
        strict=True,
    )
    return all(
        np.allclose(
            np.asarray(one, np.float64),
            np.asarray(other, np.float64),
            rtol=0.05 if jnp.dtype(one.dtype).itemsize < 4 else 1e-3,
            atol=1e-7,
        )
        for one, other in pairs
    )
