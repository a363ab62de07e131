"""Checks whether an optimizer may be applied to only some rows of a table.

Such an optimizer must treat each element independently; it may use the norm of the
whole gradient, which rows of zeros do not change. Other optimizers silently give
different numbers for rows than for the table: `optax.lamb` divides by the norm of a
parameter, `optax.clip_by_block_rms` by its number of elements, which would be that of
the rows, unused places included. An optimizer is therefore tried on small arrays first.
"""

import weakref
from collections.abc import Callable, Hashable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from edbatch.compilation.tier import known_options
from edbatch.errors import PlanError, shown
from edbatch.target import choose_target

if TYPE_CHECKING:
    import optax

_ROWS, _LOOKED_UP, _MOST = 7, (1, 4), 3  # table rows, rows looked up, other axes
_PLACES = 5  # places for rows in a sparse gradient; two of them are in use
_STEPS = 3  # a dependence on whole parameters may show only in the second step

# States of the `optax.contrib` optimizers that adapt their own step size. A trial would
# detect these only after many steps; the smaller the learning rate, the more.
_OWN_STEP = {
    *("DAdaptAdamWState", "DoGState", "DoWGState", "MechanicState", "MomoState"),
    *("MomoAdamState", "ProdigyState"),
}

Part = Callable[[Any], Any]


class _Verdict(NamedTuple):
    """The result of a trial.

    Attributes:
        takes_rows: Whether a step on rows equals the step on the whole table.
        withholds: Whether `optax.apply_every` defers the first step to a later one.
    """

    takes_rows: bool
    withholds: bool


# By structure of the parameters, for the lifetime of an optimizer.
_TRIED: "weakref.WeakKeyDictionary[Any, dict[Hashable, _Verdict]]"
_TRIED = weakref.WeakKeyDictionary()


def update_of(
    optimizer: "optax.GradientTransformation | optax.MultiSteps",
) -> Callable[..., Any]:
    """Returns an optimizer's update function; it accepts extra arguments."""
    import optax

    if isinstance(optimizer, optax.MultiSteps):  # accepts them already
        return optimizer.update
    return optax.with_extra_args_support(optimizer).update


def check_row_optimizer(
    optimizer: "optax.GradientTransformation | optax.MultiSteps",
    params: Any,
    is_table: list[bool],
    extra: dict[str, Any],
    parts: list[Any],
) -> None:
    """Checks that an optimizer updates rows of a table as it updates the table; cached.

    Args:
        optimizer: An Optax optimizer.
        params: The parameters; their structure, dtypes and numbers of axes are used.
        is_table: For each of their arrays, whether rows of it are updated.
        extra: Extra arguments of the update; their shapes and dtypes are used.
        parts: The parts of its state kept for tables, from `parts_of_rows`.

    Raises:
        PlanError: It does not, or it accumulates gradients of several steps, or the
            trial failed.
    """
    leaves, tree = jax.tree.flatten(params)
    kinds = tuple((jnp.ndim(each), str(jnp.result_type(each))) for each in leaves)
    key = tree, kinds, tuple(is_table), tuple(sorted(extra))
    verdict = _tried(
        optimizer.update, key, lambda: _try(optimizer, tree, kinds, is_table, extra)
    )
    if _adds_up(parts, optimizer, verdict):
        raise PlanError(
            "an optimizer is applied to the rows of a table that a step looks up, but"
            " this one adds up gradients of several steps (optax.MultiSteps,"
            " apply_every), and rows that were looked up in an earlier step would never"
            " be updated; use larger minibatches, or the dense gradient; and"
            " optax.MultiSteps of one step by itself, outside of a chain"
        )
    if not verdict.takes_rows or any(_finds_its_step(each) for each in parts):
        raise PlanError(
            "an optimizer is applied to rows of a table if it treats each element by"
            " itself, but this one updates a row differently than with the whole table;"
            " leave out what divides by norms or sizes of parameters, what adds noise,"
            " and what finds its own step (optax.lamb, lars, adaptive_grad_clip,"
            " clip_by_block_rms, add_noise, contrib.prodigy), or use the dense gradient"
        )


def parts_of_rows(owners: Any, is_of_rows: Callable[[Any], bool]) -> list[Any]:
    """Finds the parts of an optimizer's state that the check has to look at.

    Args:
        owners: The state; each leaf is replaced by a pair of the leaf and the gradient
            of its parameter.
        is_of_rows: Returns whether such a pair belongs to a table.

    Returns:
        The parts that may accumulate gradients or adapt their step size, and contain
        a pair of a table; nested parts are listed separately.
    """
    found = []

    def visit(node: Any) -> None:
        def is_part(inner: Any) -> bool:
            return inner is not node and _is_part(inner)

        for each in jax.tree.leaves(node, is_leaf=is_part):
            if is_part(each):
                leaves = jax.tree.leaves(each, is_leaf=is_of_rows)
                found.extend([each] if any(map(is_of_rows, leaves)) else [])
                visit(each)

    visit((owners,))
    return found


def _is_part(node: Any) -> bool:
    import optax

    if isinstance(node, optax.MultiStepsState | optax.ApplyEvery):
        return True
    return _finds_its_step(node)


def _adds_up(parts: list[Any], optimizer: Any, verdict: _Verdict) -> bool:
    """Whether a part of an optimizer's state accumulates gradients of several steps."""
    import optax

    several = [each for each in parts if isinstance(each, optax.MultiStepsState)]
    if len(several) > (1 if _is_of_one_step(optimizer) else 0):
        return True
    return verdict.withholds and any(isinstance(e, optax.ApplyEvery) for e in parts)


def _is_of_one_step(optimizer: Any) -> bool:
    """Whether an optimizer is `optax.MultiSteps` with ``every_k_schedule=1``.

    Schedules do not count, since they may begin with 1 and change later; nor does a
    `MultiSteps` inside a chain, where its number cannot be read.
    """
    import optax

    owner = getattr(optimizer.update, "__self__", None)
    schedule: Any = getattr(owner, "_every_k_schedule", None)
    of_a_number = f"{optax.MultiSteps.__init__.__qualname__}.<locals>"
    name = getattr(schedule, "__qualname__", "")
    return bool(name.startswith(of_a_number) and schedule(0) == 1)


def _finds_its_step(part: Any) -> bool:
    kind = type(part)
    return kind.__name__ in _OWN_STEP and kind.__module__.startswith("optax.")


def _tried(
    update: Callable[..., Any], key: tuple[Any, ...], make: Callable[[], _Verdict]
) -> _Verdict:
    """Returns the cached verdict on an optimizer, or makes one."""
    # A bound method is a new, short-lived object at each access.
    own = getattr(update, "__self__", update)
    try:
        known = _TRIED.setdefault(own, {})
    except TypeError:  # it does not support weak references, or has no hash
        return make()
    key = getattr(update, "__func__", None), *key
    if key not in known:
        known[key] = make()
    return known[key]


def _try(
    optimizer: Any,
    tree: Any,
    kinds: tuple[tuple[int, str], ...],
    is_table: list[bool],
    extra: dict[str, Any],
) -> _Verdict:
    with ExitStack() as stack:
        stack.enter_context(jax.ensure_compile_time_eval())
        # NaN checks and transfer guards are for the user's own computations.
        for each in (jax.debug_nans, jax.debug_infs):
            stack.enter_context(each(False))
        stack.enter_context(jax.transfer_guard("allow"))
        try:
            trial = _Trial(optimizer, tree, kinds, is_table, jax.tree.map(_like, extra))
            rows = trial.rows_are_as_in_tables() and trial.rows_are_independent()
            return _Verdict(rows, trial.withholds())
        except PlanError:
            raise
        except Exception as error:  # third-party code may raise anything
            raise PlanError(
                "an optimizer that is applied to rows of a table is tried on small"
                f" arrays, but this one raised {type(error).__name__}:"
                f" {shown(str(error), 200)}; let it take arrays of any size, or use the"
                " dense gradient"
            ) from error


def _like(value: Any) -> Any:
    """Replaces an array by ones; other values, such as functions, are kept."""
    if isinstance(value, jax.Array | np.ndarray | np.generic | complex | float | int):
        return jnp.ones(jnp.shape(value), jnp.result_type(value))
    return value


class _Trial:
    """An optimizer and small arrays to try it on.

    Args:
        optimizer: The optimizer.
        tree: The structure of the parameters.
        kinds: Number of axes and dtype of each of their arrays.
        is_table: For each array, whether rows of it are updated.
        extra: Extra arguments of the update.
    """

    def __init__(
        self,
        optimizer: "optax.GradientTransformation | optax.MultiSteps",
        tree: Any,
        kinds: tuple[tuple[int, str], ...],
        is_table: list[bool],
        extra: dict[str, Any],
    ) -> None:
        self._init, update = optimizer.init, update_of(optimizer)

        def step(gradient: Any, state: Any, params: Any) -> tuple[Any, Any, Any]:
            updates, state = update(gradient, state, params, **extra)
            moved = jax.tree.map(
                lambda old, change: (old + change).astype(old.dtype), params, updates
            )
            return updates, state, moved

        # One quickly compiled program, instead of one per operation.
        options = known_options(choose_target().coarse_options)
        self._step: Any = jax.jit(step, compiler_options=options)
        self._eager_step = step
        self._tree = tree
        self._is_table = is_table
        random = np.random.default_rng(0)

        def sample(scale: float) -> Any:
            shapes = [
                (_ROWS, *(_MOST,) * (ndim - 1)) if table else (_MOST,) * ndim
                for (ndim, _), table in zip(kinds, is_table, strict=True)
            ]
            return tree.unflatten(
                [
                    jnp.asarray(scale * random.standard_normal(shape), dtype)
                    for shape, (_, dtype) in zip(shapes, kinds, strict=True)
                ]
            )

        self._params = sample(2.0)
        # Similar gradients, as in training: optimizers that adapt their step size to
        # the distance moved along the gradient then do so.
        base = sample(1.0)
        self._gradients = [
            jax.tree.map(jnp.add, base, sample(0.2)) for _ in range(_STEPS)
        ]

    def rows_are_as_in_tables(self) -> bool:
        """Whether steps on rows equal table steps with zero gradients elsewhere."""
        used = np.array(_LOOKED_UP)
        rows = np.full(_PLACES, _ROWS)
        rows[: len(used)] = used

        def part(table: Any) -> Any:
            return jnp.asarray(table).at[rows].get(mode="fill", fill_value=0)

        def only_used(table: Any) -> Any:
            return jnp.zeros_like(table).at[used].set(table[used])

        gradients = [self._of_tables(only_used, each) for each in self._gradients]
        whole, _ = self._run(self._params, gradients)
        few, _ = self._run(
            self._of_tables(part, self._params),
            [self._of_tables(part, each) for each in gradients],
        )
        return all(
            _are_close(one, other)
            for one, other in zip(
                self._seen(whole, lambda table: table[used]),
                self._seen(few, lambda table: table[: len(used)]),
                strict=True,
            )
        )

    def rows_are_independent(self) -> bool:
        """Whether rows move the same when gradients of other rows are negated."""
        used = np.array(_LOOKED_UP)

        def others_turned(table: Any) -> Any:
            return (-table).at[used].set(table[used])

        gradients = list(self._gradients)
        gradients[1] = self._of_tables(others_turned, gradients[1])
        found = []
        for each in (self._gradients, gradients):
            updates, state = self._run(self._params, each)
            kept = [
                leaf[used] if jnp.shape(leaf)[:1] == (_ROWS,) else leaf
                for leaf in jax.tree.leaves(state)
                if not jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
            ]
            found.append(self._seen(updates, lambda table: table[used]) + kept)
        return all(_are_close(*pair) for pair in zip(*found, strict=True))

    def withholds(self) -> bool:
        """Whether `optax.apply_every` defers the first step to a later one."""
        import optax

        def is_part(node: Any) -> bool:
            return isinstance(node, optax.ApplyEvery)

        _, state = self._run(self._params, self._gradients[:1])
        parts = filter(is_part, jax.tree.leaves(state, is_leaf=is_part))
        return any(int(each.count) for each in parts)

    def _run(self, params: Any, gradients: list[Any]) -> tuple[list[Any], Any]:
        """Returns the updates of each step, and the state after the last one."""
        state, found = self._init(params), []
        for each in gradients:
            updates, state, params = self._run_step(each, state, params)
            found.append(updates)
        if any(isinstance(each, jax.core.Tracer) for each in jax.tree.leaves(found)):
            raise PlanError(
                "an optimizer that is applied to rows of a table is tried on small"
                " arrays, but this one holds a value that is being traced, such as a"
                " learning rate that is an argument of a compiled function; make it"
                " part of the state by optax.inject_hyperparams, or use the dense"
                " gradient"
            )
        return found, state

    def _run_step(self, *args: Any) -> tuple[Any, Any, Any]:
        try:
            return self._step(*args)
        except Exception:  # it uses an enclosing trace, such as the axis of a mesh
            self._step = self._eager_step
            return self._step(*args)

    def _of_tables(self, change: Part, pytree: Any) -> Any:
        found = jax.tree.leaves(pytree)
        return self._tree.unflatten(
            [
                change(each) if table else each
                for each, table in zip(found, self._is_table, strict=True)
            ]
        )

    def _seen(self, updates: list[Any], change: Part) -> list[Any]:
        """Returns the arrays of all updates, with `change` applied to tables."""
        return [
            leaf
            for each in updates
            for leaf in jax.tree.leaves(self._of_tables(change, each))
        ]


def _are_close(one: Any, other: Any) -> bool:
    expected, found = (np.asarray(each, np.float64) for each in (one, other))
    if not np.isfinite(expected).all():
        return np.array_equal(found, expected, equal_nan=True)
    return np.allclose(
        found,
        expected,
        rtol=0.05 if jnp.dtype(one.dtype).itemsize < 4 else 1e-3,
        atol=1e-5 * np.abs(expected).max(initial=0.0),
    )
