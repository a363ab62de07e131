"""The host part of batched functions, up to a plan: recording, decisions, loaders."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Self

from edbatch import planning
from edbatch.arguments import list_of
from edbatch.batched_function import BatchedFunction, Model
from edbatch.compiler import Compiler
from edbatch.errors import PlanError
from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.parameter_structure import abstract
from edbatch.graph.type_table import TypeTable
from edbatch.loader.loader import Loader
from edbatch.memory_planner.planner import Planner
from edbatch.memory_planner.sizes import Sizes
from edbatch.options import Options
from edbatch.plan.cache import CacheInfo
from edbatch.plan_state import Decisions
from edbatch.policies.cost.model import CostModel
from edbatch.recording import (
    minibatch_of,
    record_each,
    record_instances,
    record_minibatch,
)
from edbatch.schedule.interrupt import keyboard_interrupts
from edbatch.schedule.policy import Policy
from edbatch.state_registry import StateRegistry
from edbatch.target import Target, choose_target


class HostSide:
    """The part of a batched function that runs on the host, in any thread.

    Args:
        states: The states of the model.

    Attributes:
        states: The states of the model, by structure of the parameters.
    """

    def __init__(self, states: StateRegistry) -> None:
        self.states = states

    @property
    def options(self) -> Options:
        """Options of planning."""
        return self.states.options

    @property
    def model(self) -> Model:
        """The model for one instance."""
        return self.states.model

    @property
    def policy(self) -> Policy:
        """The policy that schedules minibatches."""
        return self.options.policy

    @policy.setter
    def policy(self, policy: Policy) -> None:
        self.states.options = replace(self.options, policy=policy)

    @property
    def sizes(self) -> Sizes:
        """Widths and buckets."""
        return self.options.sizes

    @property
    def planner(self) -> Planner:
        """Options of memory planning."""
        return self.options.planner

    @property
    def compiler(self) -> Compiler:
        """Options of compiling cells."""
        return self.options.compiler

    @property
    def costs(self) -> CostModel | None:
        """Measured costs of batches; None if none were given."""
        return self.options.costs

    @property
    def types(self) -> TypeTable:
        """The node types recorded so far for the bound parameter shapes."""
        return self.states.default().types

    @property
    def takes_merged(self) -> bool:
        """Whether `plan` accepts a recording of several instances, as from `graph`."""
        return True

    @property
    def cache_info(self) -> CacheInfo:
        """Hits, misses and memory of the cache of plans."""
        return self.states.cache_info

    def bind(self, params: Any) -> Self:
        """Sets the default parameter shapes for recording instances.

        If nothing is bound, the first run (a call, ``apply`` or ``rollout``) binds its
        parameters. ``params=`` of `record`, `fit` and other methods applies to that
        call only. Existing recordings and plans for other parameters stay valid.

        Args:
            params: Parameters, or their ``jax.ShapeDtypeStruct`` pytree.

        Returns:
            This object.
        """
        self.states.bind(params)
        return self

    @property
    def decisions(self) -> Decisions:
        """Decisions made from instances for the bound parameter shapes."""
        return self.states.default().planning.decisions()

    @keyboard_interrupts()
    def fit(self, sample: Iterable[Any], *, params: Any = None) -> Self:
        """Makes the decisions that depend on instances, from a sample.

        The decisions are: which types have their products of external inputs hoisted,
        which operands compiled loops read as slices, which types are laid out aligned,
        and the widths of chunks. Results do not depend on them. Without a sample, the
        first minibatch with a type decides for that type, even if it has only two
        instances, as in a first try. With a sample, plans depend on the sample and on
        their own minibatch only; other minibatches, before or after, have no effect.
        Types that the sample lacks are not hoisted, and their operands are gathered.

        Call it before the first plan: existing plans keep running, but planning the
        same instances again needs a new compilation.

        Args:
            sample: A representative minibatch, of instances or recordings.
            params: As for `record_all`.

        Returns:
            This object; see `decisions` for the result.

        Raises:
            EdbatchError: As for `plan`.

        Example:
            >>> import edbatch as eb
            >>> import jax.numpy as jnp
            >>> twice = eb.batch(eb.cell(lambda params, x: params * x))
            >>> twice.bind(jnp.float32(2)).fit([1.0, 5.0, 3.0]).decisions.sample
            3
        """
        sample = list_of(PlanError, "a sample", sample)
        state = self.states.of_minibatch(sample, params)
        graph = record_minibatch(state, sample)
        planning.fit(graph, state, self.options, self._target(params))
        return self

    def _target(self, params: Any) -> Target:
        """Returns the target of the device that will run plans."""
        return choose_target(params)

    @keyboard_interrupts()
    def record(self, instance: Any, *, params: Any = None) -> DataflowGraph:
        """Records the model on one instance, to plan it later.

        Args:
            instance: An instance.
            params: The parameters to record for, or their shapes; the bound ones if
                None.

        Returns:
            Its dataflow graph.

        Raises:
            EdbatchError: The model does something outside cells that cannot be
                recorded, or a cell fails.
        """
        states = self.states
        state = states.default() if params is None else states.of_params(params)
        return record_instances(state, [instance])

    @keyboard_interrupts()
    def record_all(
        self, instances: Iterable[Any], *, params: Any = None
    ) -> list[DataflowGraph]:
        """Records the instances of a data set, to plan them later.

        Records each instance as `record` does. All recordings get one output structure:
        the elements of a list that is empty in one output are inferred from the same
        list in others.

        Args:
            instances: Instances, or recordings of one instance each.
            params: The parameters to record for, or their shapes; by default those of
                the recordings among the instances, otherwise the bound ones.

        Returns:
            Their dataflow graphs.

        Raises:
            EdbatchError: As for `record`, with a note that names the instance. Or a
                recording belongs to another model or other parameters, or holds several
                instances, or the model's outputs differ in structure.
        """
        instances = list_of(PlanError, "a data set", instances)
        return record_each(self.states.of_minibatch(instances, params), instances)

    @keyboard_interrupts()
    def graph(self, instances: Iterable[Any], *, params: Any = None) -> DataflowGraph:
        """Records a minibatch, or merges recordings.

        Args:
            instances: Instances, recordings, or both.
            params: As for `record_all`.

        Returns:
            The dataflow graph of all of them.

        Raises:
            EdbatchError: As for `record`; or the minibatch is empty; or a recording
                belongs to another model or other parameters.
        """
        instances = minibatch_of(instances)
        return record_minibatch(self.states.of_minibatch(instances, params), instances)

    @staticmethod
    def _checked_call(
        params: Any, function: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> Any:
        """Calls a compiled function; on a `TypeError`, names invalid parameters."""
        try:
            return function(*arguments)
        except TypeError:
            abstract(params)
            raise

    def loader(
        self: BatchedFunction,
        instances: Iterable[Any],
        batch_size: int,
        **options: Any,
    ) -> Loader:
        """Returns ``eb.Loader(self, instances, batch_size, **options)``.

        Args:
            instances: Instances, or recordings of them by this function.
            batch_size: Instances per minibatch.
            **options: Options of `edbatch.Loader`.

        Returns:
            The loader.

        Raises:
            EdbatchError: As for `edbatch.Loader`.

        Example:
            >>> import edbatch as eb
            >>> import jax.numpy as jnp
            >>> twice = eb.batch(eb.cell(lambda params, x: params * x))
            >>> loader = twice.bind(jnp.float32(2)).loader([1.0, 5.0, 3.0], 2)
            >>> len(loader)
            2
        """
        return Loader(self, instances, batch_size, **options)
