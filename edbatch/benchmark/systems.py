"""The systems that a benchmark compares, and the steps of each."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import numpy as np

import edbatch as eb
from edbatch.benchmark.config import LEARNED, PLANNERS
from edbatch.benchmark.exact import Exact
from edbatch.benchmark.levels import Levels
from edbatch.benchmark.scan import Scan, ScanSorted
from edbatch.compiler import Compiler
from edbatch.graph import DataflowGraph
from edbatch.graph.context import jitted_cells
from edbatch.instance_results import split_instances
from edbatch.measuring import add_up, half_squares, loss_of
from edbatch.memory_planner import Planner
from edbatch.plan import Plan
from edbatch.schedule import Policy

Model = Callable[[Any, Any], Any]


class System(Protocol):
    """A way to run a model on minibatches.

    Attributes:
        name: Its name in `SYSTEMS`.
        about: Its description and weakness, in one line.
    """

    name: str
    about: str

    def record(self, instances: Sequence[Any]) -> Any:
        """Records instances; the recordings can be reused."""

    def plan(self, recordings: Any) -> Any:
        """Plans a minibatch of recordings on the host, from scratch."""

    def forward(self, plan: Any) -> Any:
        """Computes the outputs, including the transfer of the plan."""

    def train(self, plan: Any) -> tuple[Any, Any]:
        """Computes `half_squares` of the outputs, and its gradient."""

    def results(self, plan: Any, outcome: Any) -> list[Any]:
        """Splits the outcome of `forward` by instance."""


class Batched:
    """edbatch under a policy."""

    def __init__(
        self,
        name: str,
        model: Model,
        params: Any,
        policy: Policy,
        planner: Planner | None = None,
        compiler: Compiler | None = None,
        rng: Any = None,
    ) -> None:
        self.name = name
        self.about = (
            "one compiled program that reads its schedule as data; policy"
            f" {policy.name}; gathers the operands that are not in consecutive rows"
        )
        self.params = params
        self.batched = eb.batch(
            model,
            policy,
            params=params,
            planner=planner,
            compiler=compiler,
            cache_bytes=0,
        )
        self.rng = rng
        loss = loss_of(self.batched, rng)
        self._train = eb.jit(jax.value_and_grad(loss, allow_int=True), tiers="fine")

    def record(self, instances: Sequence[Any]) -> list[DataflowGraph]:
        """Records the model on each instance."""
        return [self.batched.record(each) for each in instances]

    def plan(self, recordings: Sequence[DataflowGraph]) -> Plan:
        """Merges, schedules, lays out and encodes, without a cache."""
        return self.batched.plan(recordings)

    def forward(self, plan: Plan) -> Any:
        """Runs the plan."""
        return self.batched.apply(self.params, plan, rng=self.rng)

    def train(self, plan: Plan) -> tuple[Any, Any]:
        """Runs the plan's forward and backward pass."""
        return self._train(self.params, plan)

    def results(self, plan: Plan, outcome: Any) -> list[Any]:
        """Returns the outputs per instance."""
        return split_instances(outcome, plan.shape.result.instances)


class Unbatched:
    """The model as written, one instance after the other; the reference."""

    name = "unbatched"
    about = (
        "the model as written over jitted cells, one instance after the other; pays"
        " dispatch at every node"
    )

    def __init__(self, model: Model, params: Any, rng: Any = None) -> None:
        self.model = model
        self.params = params
        self._rng = rng

    def record(self, instances: Sequence[Any]) -> list[Any]:
        """Records nothing: returns the instances."""
        return list(instances)

    def plan(self, recordings: list[Any]) -> list[Any]:
        """Plans nothing: returns the instances."""
        return recordings

    def forward(self, plan: list[Any]) -> list[Any]:
        """Calls the model on each instance."""
        with jitted_cells():
            return [self._call(self.params, plan, k) for k in range(len(plan))]

    def train(self, plan: list[Any]) -> tuple[Any, Any]:
        """Differentiates the model on each instance and sums values and gradients."""

        def loss(params: Any, k: int) -> Any:
            return half_squares(self._call(params, plan, k))

        step = jax.value_and_grad(loss, allow_int=True)
        with jitted_cells():
            return add_up(step(self.params, k) for k in range(len(plan)))

    def _call(self, params: Any, instances: list[Any], k: int) -> Any:
        """Calls the model on one instance; cells draw the same numbers as batched."""
        if self._rng is None:
            return self.model(params, instances[k])
        with eb.cell_keys(self._rng, k):
            return self.model(params, instances[k])

    def results(self, plan: list[Any], outcome: list[Any]) -> list[Any]:
        """Returns the outputs per instance."""
        return [jax.tree.map(np.asarray, each) for each in outcome]


def make_system(
    name: str,
    model: Model,
    params: Any,
    policy: Policy,
    *,
    rng: Any = None,
    is_policy: bool = False,
) -> System:
    """Makes a system.

    Args:
        name: The name of a system from `SYSTEMS` or `PLANNERS`, or of a policy.
        model: The model for one instance.
        params: Its parameters.
        policy: The policy of the systems ``edbatch`` and `PLANNERS`, and the policy
            called ``learned``.
        rng: A key, for cells that draw random numbers.
        is_policy: Whether `name` is the name of a policy.

    Raises:
        PolicyError: There is no such policy.
    """
    if is_policy:
        chosen = policy if name == LEARNED else eb.get_policy(name)
        return Batched(name, model, params, chosen, rng=rng)
    if name in ("edbatch", "agenda", "depth"):
        chosen = policy if name == "edbatch" else eb.get_policy(name)
        return Batched(name, model, params, chosen, rng=rng)
    if name in PLANNERS:
        return Batched(name, model, params, policy, *PLANNERS[name], rng=rng)
    if name == Unbatched.name:
        return Unbatched(model, params, rng)
    for each in (Scan, ScanSorted, Levels, Exact):
        if each.name == name:
            return each(model, params)
    raise AssertionError(f"the configuration knows the systems, so not {name!r}")
