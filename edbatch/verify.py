"""`eb.verify`: compares a batched function with its unbatched model."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from edbatch.arguments import check_flag, check_number, check_word
from edbatch.batched import Batched
from edbatch.batched_function import BatchedFunction
from edbatch.closeness import Comparison, compare_arrays, compare_outputs
from edbatch.compilation.settings import use_tiers
from edbatch.errors import EdbatchError, VerificationError, shown
from edbatch.graph.compute_dtype import cast_returned_parameters, computing_in
from edbatch.graph.context import given_values, jitted_apart, jitted_cells
from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.external_input import input_dtype
from edbatch.graph.node_keys import cell_keys
from edbatch.graph.recorder import AsksForValueError
from edbatch.instance_results import split_instances
from edbatch.recording import minibatch_of
from edbatch.rounding import Rounding, coarsest_roundings, rounding_of
from edbatch.rounding_jumps import jumps_within_rounding
from edbatch.verified_gradients import compare_gradients, has_float

Values = list[list[list[np.ndarray]]]  # per instance, per read, the arrays it read


@dataclass(frozen=True)
class Verification:
    """Largest differences between batched and unbatched results.

    Attributes:
        instances: Number of instances compared.
        outputs: Number of output numbers compared.
        max_output_error: Largest absolute difference of an output, divided by the
            output's largest entry if above 1.
        max_gradient_error: The same for gradients with respect to a parameter; None if
            gradients were not compared.
        close_choices: Number of instances for which the unbatched model takes another
            path on its own, since a value that it reads differs by rounding.
        output_jumps: Number of arrays, outputs of instances or values that they ask
            for, that differ by more than the tolerance, but only where a change of the
            parameters by some rounding errors changes the unbatched model's array as
            much, as at a threshold.
        gradient_jumps: Number of parameters whose gradients differ so, as at the kink
            of a relu.

    Example:
        >>> import edbatch as eb
        >>> @eb.cell
        ... def double(params, x):
        ...     return params * x
        >>> batched = eb.batch(double, params=2.0)
        >>> found = eb.verify(batched, 2.0, [1.0, 5.0, 3.0])
        >>> found.instances, found.outputs, found.max_output_error
        (3, 3, 0.0)
    """

    instances: int
    outputs: int
    max_output_error: float
    max_gradient_error: float | None
    close_choices: int = 0
    output_jumps: int = 0
    gradient_jumps: int = 0


def verify(
    batched: BatchedFunction,
    params: Any,
    instances: Sequence[Any],
    *,
    gradients: bool = True,
    tolerance: float | None = None,
    seed: int = 0,
    rng: Any = None,
    tier: Literal["fine", "coarse"] = "fine",
) -> Verification:
    """Compares a batched function with the unbatched model, number by number.

    Compares the outputs of every instance, and the parameter gradients of a random
    linear function of all floating outputs. For a function with a ``compute_dtype``, or
    with half-precision parameters, the gradients of the sum of all floating outputs are
    compared, too.

    If the model reads values (`edbatch.value`), these values are compared, too. The
    unbatched model then gets the values of the batched run, so that it takes the same
    path where two choices differ only by rounding; `Verification.close_choices` counts
    the instances that take another path with their own values.

    A gradient jumps where an activation has a kink, as `jax.nn.relu` at zero, an output
    where a cell compares, rounds or takes a maximum's position. A run that rounds
    differently may be on the other side. So without a ``tolerance``, a number may also
    differ by as much as the unbatched model's changes if its parameters change by some
    rounding errors; `Verification.output_jumps` and `Verification.gradient_jumps` count
    the arrays for which this was needed.

    Args:
        batched: The batched function, for one device or for several.
        params: The model's parameters.
        instances: Instances, not recordings.
        gradients: Whether to compare gradients.
        tolerance: Allowed difference, relative to the larger of 1 and the largest
            number of the array; ten times as much for gradients. By default, for
            outputs and gradients alike, 512 rounding errors of the lowest precision on
            the path to the number, forward and backward, but at most one half, or four
            rounding errors if that is more.
        seed: Seed of the random linear function.
        rng: The key for cells that draw random numbers, as for `Batched.apply`; the
            unbatched model gets the same keys through `cell_keys`.
        tier: Which programs to compare: ``"fine"``, the final ones, or ``"coarse"``,
            which compile in a fraction of the time (`edbatch.jit`). For gradients, the
            fine program is that of `jax.grad` alone, the coarse one that of a function
            compiled by `edbatch.jit`.

    Returns:
        The largest differences.

    Raises:
        VerificationError: A structure, a shape, a dtype or a number differs; the
            message states where and by how much.
        EdbatchError: An argument has the wrong type, or the model cannot be planned.

    Example:
        >>> import edbatch as eb
        >>> @eb.cell
        ... def double(params, x):
        ...     return params * x
        >>> batched = eb.batch(double, params=2.0)
        >>> eb.verify(batched, 2.0, [1.0, 5.0]).max_gradient_error < 1e-6
        True
    """
    if not all(hasattr(batched, name) for name in ("model", "plan", "apply")):
        raise EdbatchError(
            "eb.verify takes a function made by eb.batch or .sharded(), but this is"
            f" {shown(batched)}, of type {type(batched).__name__}; usually the model"
            " itself; write eb.verify(eb.batch(model), params, instances)"
        )
    check_flag(EdbatchError, "gradients of eb.verify", gradients)
    check_number(EdbatchError, "seed of eb.verify", seed, 0, whole=True)
    if tolerance is not None:
        check_number(EdbatchError, "tolerance of eb.verify", tolerance, 0)
    check_word(EdbatchError, "tier of eb.verify", tier, ("fine", "coarse"))
    instances = minibatch_of(instances)
    if any(isinstance(each, DataflowGraph) for each in instances):
        raise EdbatchError(
            "eb.verify runs the model on each instance, too, but received recordings,"
            " which do not hold them; pass the instances that were recorded"
        )
    params = jax.tree.map(lambda leaf: leaf, params)  # sorts keys like jax.grad
    if params is None:  # a model without parameters
        batched.bind(params)
    with use_tiers(tier):
        plan, values = _plan(batched, params, instances, rng)
        results = batched.apply(params, plan, rng=rng)  # binds parameters
        cells: dict[Any, Any] = batched.types.derived(_verify, dict)
        with jitted_apart(cells):
            run = _BatchedRun(plan, values, results)
            own = (gradients, tolerance, seed, rng)
            return _verify(batched, params, instances, run, *own)


class _BatchedRun(NamedTuple):
    """The batched run of a minibatch: its plan, the values read, and the results."""

    plan: Any
    values: Values | None
    results: Any


def _verify(
    batched: BatchedFunction,
    params: Any,
    instances: Sequence[Any],
    run: _BatchedRun,
    gradients: bool,
    tolerance: float | None,
    seed: int,
    rng: Any,
) -> Verification:
    plan, values, results = run
    dtype = batched.types.compute_dtype
    model = _unbatched(batched.model, dtype, rng, values)
    jumped = 0
    with jitted_cells(exact=True):
        if values is not None:
            free = _unbatched(batched.model, dtype, rng)

            def run_on(params: Any, place: int, source: _KeptValues) -> None:
                with given_values(source):
                    free(params, instances[place], place)

            jumped = _compare_values(run_on, params, values, tolerance, dtype)
        expected = [model(params, each, k) for k, each in enumerate(instances)]
        close = 0
        if values is not None:
            alone = [free(params, each, k) for k, each in enumerate(instances)]
            close = sum(map(_is_other_path, alone, expected))
    found = split_instances(results, len(instances))
    outputs = [
        _compare_outputs(model, params, instances[k], k, own, reference, tolerance)
        for k, (own, reference) in enumerate(zip(found, expected, strict=True))
    ]
    count = sum(np.size(leaf) for leaf in jax.tree.leaves(expected))
    worst = max((each.worst for each in outputs), default=0.0)
    output_jumps = jumped + sum(each.jumps for each in outputs)
    gradient, jumps = None, 0
    if gradients and has_float(params) and has_float(expected):
        precise = None
        if dtype is not None:
            precise = _unbatched(batched.model, None, rng, values)
        given = (params, plan, model, instances, tolerance, seed, rng, precise)
        gradient, jumps = compare_gradients(batched, *given)
    found_jumps = (output_jumps, jumps)
    return Verification(len(instances), count, worst, gradient, close, *found_jumps)


def _compare_outputs(
    model: Callable[..., Any],
    params: Any,
    instance: Any,
    place: int,
    own: Any,
    expected: Any,
    tolerance: float | None,
) -> Comparison:
    """Compares the outputs of an instance."""

    @cache
    def roundings() -> list[Rounding]:
        with jitted_cells(exact=True):
            return coarsest_roundings(lambda own: model(own, instance, place), params)

    @cache
    def jumps() -> list[np.ndarray]:
        return jumps_within_rounding(
            lambda own, k: jax.tree.leaves(model(own, instance, k)), params, [place]
        )

    where = f"instance {place}"
    return compare_outputs(own, expected, where, tolerance, roundings, jumps)


def _plan(
    batched: BatchedFunction, params: Any, instances: Sequence[Any], rng: Any
) -> tuple[Any, Values | None]:
    """Plans a minibatch; also returns the values that instances read, if any."""
    try:
        return batched.plan(instances, params=params), None
    except AsksForValueError:
        if not isinstance(batched, Batched):
            raise
    found = batched.rollout(params, instances, rng=rng, keep_values=True)
    assert found.values is not None, "values are kept"
    return batched.plan(found.recordings), found.values


class _GivenValues:
    """Gives the unbatched model the values of the batched run."""

    def __init__(self, values: list[list[np.ndarray]]) -> None:
        self._values = iter(values)

    def next(self, tree: Any) -> Any:
        leaves, treedef = jax.tree.flatten(tree)
        given = next(self._values, None)
        if given is None or len(given) != len(leaves):
            raise VerificationError(
                "the model asks for a value that it did not ask for in the batched run,"
                " although it got the same values; it depends on something else, such"
                " as its own random numbers"
            )
        self.keep(leaves, given)
        return jax.tree.unflatten(treedef, given)

    def keep(self, leaves: list[Any], given: list[np.ndarray]) -> None:
        """Receives the model's own values, and those of the batched run."""


class _KeptValues(_GivenValues):
    """Like `_GivenValues`; also keeps the model's own values, next to those."""

    def __init__(self, values: list[list[np.ndarray]]) -> None:
        super().__init__(values)
        self.pairs: list[tuple[list[np.ndarray], list[Any]]] = []

    def keep(self, leaves: list[Any], given: list[np.ndarray]) -> None:
        self.pairs.append((given, leaves))


_Run = Callable[[Any, int, _KeptValues], None]  # the model, for params and an instance


def _compare_values(
    run: _Run, params: Any, values: Values, tolerance: float | None, dtype: Any
) -> int:
    """Compares the values that instances ask for; returns how many arrays jump."""
    jumped = 0
    for place, given in enumerate(values):
        kept = _KeptValues(given)
        try:
            run(params, place, kept)
        finally:  # a wrong value may be the reason for an error in the model
            for asked, (found, expected) in enumerate(kept.pairs):
                if dtype is not None:
                    expected = cast_returned_parameters(expected, params, dtype)
                # A Python number that was read has NumPy's default dtype, not JAX's.
                own = [each.astype(input_dtype(each)) for each in found]
                names = [f"instance {place}, value {asked} that it asks for"] * len(own)
                roundings = partial(_own_roundings, expected)
                read = partial(_read_again, run, given, asked)
                jumps = partial(jumps_within_rounding, read, params, [place])
                compared = (own, expected, names, tolerance, roundings, jumps)
                jumped += compare_arrays(*compared).jumps
    return jumped


def _own_roundings(arrays: list[Any]) -> list[Rounding]:
    return [rounding_of(np.asarray(each).dtype) for each in arrays]


def _read_again(
    run: _Run, given: list[list[np.ndarray]], asked: int, params: Any, place: int
) -> list[Any]:
    """Returns the model's own value for other parameters."""
    kept = _KeptValues(given)
    run(params, place, kept)
    return kept.pairs[asked][1]


def _is_other_path(own: Any, expected: Any) -> bool:
    """Whether results differ by more than rounding."""
    arrays = jax.tree.map(lambda leaf: np.asarray(leaf, input_dtype(leaf)), own)
    try:
        compare_outputs(arrays, expected, "", None, list)
    except (VerificationError, IndexError):
        return True
    return False


def _unbatched(
    model: Callable[[Any, Any], Any],
    dtype: Any,
    rng: Any,
    values: Values | None = None,
) -> Callable[..., Any]:
    """Returns the unbatched model, with its keys, and with given values if any."""

    def run(params: Any, instance: Any, place: int) -> Any:
        with ExitStack() as contexts:
            contexts.enter_context(computing_in(dtype))
            if rng is not None:
                contexts.enter_context(cell_keys(rng, place))
            if values is not None:
                contexts.enter_context(given_values(_GivenValues(values[place])))
            result = model(params, instance)
            if dtype is None:
                return result
            return cast_returned_parameters(result, params, dtype)

    return run
