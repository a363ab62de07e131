"""`eb.batch`: turns a model for one instance into a batched function."""

from pathlib import Path
from typing import Any, cast

from edbatch.arguments import check_flag, is_number, renamed
from edbatch.batched import Batched
from edbatch.batched_function import Model
from edbatch.compiler import Compiler
from edbatch.errors import EdbatchError, PlanError, PolicyError, shown
from edbatch.graph.compute_dtype import checked_dtype
from edbatch.memory_planner.planner import Planner
from edbatch.memory_planner.sizes import Sizes
from edbatch.options import Options, Search
from edbatch.policies.cost.file import get_costs
from edbatch.policies.cost.model import CostModel
from edbatch.policies.guard import guarded
from edbatch.policies.registry import get_policy
from edbatch.policies.search.beam_search import BeamSearch
from edbatch.schedule.policy import Policy
from edbatch.state_registry import StateRegistry


def _search(search: object) -> Search | None:
    if isinstance(search, Search):
        return search
    if is_number(search):
        milliseconds = float(cast(float, search))
        if milliseconds >= 0:
            return Search(milliseconds) if milliseconds else None
    raise PolicyError(
        "search of eb.batch is a number of milliseconds, 0 or more, or an"
        f" eb.Search(...), but this is {shown(search)}; leave it out for no search"
    )


@renamed(
    EdbatchError,
    search_ms="write search= and the same number",
    compilation_cache="call eb.use_compilation_cache(folder) once, which holds for the"
    " whole process",
)
def batch(
    model: Model,
    policy: str | Path | Policy = "greedy",
    *,
    params: Any = None,
    search: float | Search = 0.0,
    guard: bool = True,
    costs: str | Path | CostModel | None = None,
    sizes: Sizes | None = None,
    planner: Planner | None = None,
    compiler: Compiler | None = None,
    cache_bytes: int = 256 * 2**20,
    compute_dtype: Any = None,
) -> Batched:
    """Turns a model for one instance into a function of minibatches.

    Args:
        model: ``model(params, instance)``: ordinary Python that calls cells, for one
            instance. Returns a pytree of cell outputs.
        policy: Decides which operations run together: ``"depth"``, ``"agenda"``,
            ``"agenda-remaining"``, ``"greedy"``, a policy file, ``"zoo:NAME"`` for a
            policy that ships with edbatch, or a policy object.
        params: Parameters, or their shapes; needed to record instances before the
            first call.
        search: Time in milliseconds to search for fewer batches than the policy finds,
            for minibatches whose structure is new and whose schedule does not reach the
            lower bound; or an `edbatch.Search`. 0 for no search.
        guard: Compare the schedule of a learned policy with those of the heuristics,
            and take the one with the fewest batches; the plan's report names the
            policy that made it.
        costs: Measured costs of batches, a file from ``edbatch calibrate``. Search and
            guard then minimise predicted time instead of the number of batches, and a
            minibatch is split over devices (`Batched.sharded`) by predicted time.
        sizes: Widths of chunks, and how sizes are rounded to buckets.
        planner: How values are laid out in memory.
        compiler: How cells are compiled: packing, hoisting, slices, remat, sharing.
        cache_bytes: Memory limit of the plan cache, for each structure of parameters.
            The cache serves minibatches with the structure of an earlier one.
        compute_dtype: The dtype that cells compute in, such as ``jnp.bfloat16``, like
            `dtype` of Flax modules: floating-point arguments of a cell are cast to it,
            and the outputs computed from them are returned in it. Parameters and
            gradients with respect to them keep the parameters' dtype; these gradients
            are summed over nodes in float32, from rounded terms. None to compute in the
            dtypes of the arguments.

    Returns:
        The batched function.

    Raises:
        PolicyError: The policy is unknown, its file cannot be read, or the search time
            is negative.
        EdbatchError: An option has the wrong type.

    Example:
        >>> import edbatch as eb
        >>> import jax.numpy as jnp
        >>> @eb.cell
        ... def leaf(params, word):
        ...     return params["embedding"][word]
        >>> @eb.cell
        ... def join(params, left, right):
        ...     return jnp.tanh(params["gain"] * (left + right))
        >>> def encode(params, tree):
        ...     if isinstance(tree, int):
        ...         return leaf(params, tree)
        ...     return join(params, *(encode(params, child) for child in tree))
        >>> batched = eb.batch(encode)
        >>> params = {"embedding": jnp.eye(3), "gain": jnp.float32(0.5)}
        >>> batched(params, [((0, 1), 2), (1, 1)]).shape
        (2, 3)
    """
    if not callable(model):
        raise EdbatchError(
            "eb.batch takes a function model(params, instance) but received"
            f" {type(model).__name__}; pass the function itself"
        )
    check_flag(PlanError, "guard of eb.batch", guard)
    chosen = get_policy(policy)
    costs = get_costs(costs)
    if (own := _search(search)) is not None:
        chosen = BeamSearch(chosen, own.milliseconds, own.width, costs)
    if guard:
        chosen = guarded(chosen, costs)
    options = Options(
        chosen,
        Sizes() if sizes is None else sizes,
        Planner() if planner is None else planner,
        Compiler() if compiler is None else compiler,
        costs,
        cache_bytes,
        checked_dtype(compute_dtype),
    )
    batched = Batched(StateRegistry(model, options))
    return batched if params is None else batched.bind(params)
