"""Protocol of batched functions, whether for one device or for several."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.type_table import TypeTable
from edbatch.plan.cache import CacheInfo

Model = Callable[[Any, Any], Any]


class BatchedFunction(Protocol):
    """Protocol of batched functions, whether for one device or for several.

    `edbatch.verify` and `edbatch.Loader` rely on this protocol only, so they work for
    any number of devices.

    Example:
        >>> import edbatch as eb
        >>> @eb.cell
        ... def double(params, x):
        ...     return params * x
        >>> batched = eb.batch(double, params=2.0)
        >>> def nodes(batched: eb.BatchedFunction, instances):
        ...     return batched.plan(instances).report.nodes
        >>> nodes(batched, [1.0, 5.0]), nodes(batched.sharded(), [1.0, 5.0])
        (2, 2)
    """

    @property
    def model(self) -> Model:
        """The model for one instance."""

    @property
    def types(self) -> TypeTable:
        """The node types recorded so far for the bound parameter shapes."""

    @property
    def takes_merged(self) -> bool:
        """Whether `plan` accepts a recording of several instances."""

    @property
    def cache_info(self) -> CacheInfo:
        """Hits, misses and memory of the cache of plans."""

    @property
    def compiles(self) -> int:
        """How often programs that run plans were traced; see `compile_report`."""

    def bind(self, params: Any) -> "BatchedFunction":
        """Sets the default parameter shapes for recording instances.

        Args:
            params: Parameters, or their ``jax.ShapeDtypeStruct`` pytree.

        Returns:
            This object.
        """

    def fit(self, sample: Iterable[Any], *, params: Any = None) -> "BatchedFunction":
        """Makes the decisions that depend on instances, from a sample.

        Args:
            sample: A representative minibatch, of instances or recordings.
            params: The parameters to record for, or their shapes; the bound ones if
                None.

        Returns:
            This object.
        """

    def record(self, instance: Any, *, params: Any = None) -> DataflowGraph:
        """Records the model on one instance.

        Args:
            instance: An instance.
            params: The parameters to record for, or their shapes; the bound ones if
                None.

        Returns:
            Its dataflow graph.
        """

    def record_all(
        self, instances: Iterable[Any], *, params: Any = None
    ) -> list[DataflowGraph]:
        """Records the instances of a data set.

        Args:
            instances: Instances, or recordings of one instance each.
            params: The parameters to record for, or their shapes; the bound ones if
                None.

        Returns:
            Their dataflow graphs.
        """

    def graph(self, instances: Iterable[Any], *, params: Any = None) -> DataflowGraph:
        """Records a minibatch, or merges recordings.

        Args:
            instances: Instances, recordings of them, or both.
            params: The parameters to record for, or their shapes; the bound ones if
                None.

        Returns:
            The dataflow graph of all of them.
        """

    def plan(
        self,
        instances: Iterable[Any],
        *,
        params: Any = None,
        pad_to: int | None = None,
    ) -> Any:
        """Schedules and lays out a minibatch; on the host only.

        Args:
            instances: Instances, recordings of them, or both.
            params: The parameters to record for, or their shapes; the bound ones if
                None.
            pad_to: Rows of the result, N, at least the number of instances; exactly
                that if None. A program is compiled for each N.

        Returns:
            The plan, a pytree.
        """

    def explain(self, instances: Iterable[Any], *, params: Any = None) -> Any:
        """Explains what a minibatch costs, type by type, and what keeps types apart.

        Args:
            instances: Instances, recordings of them, or both.
            params: The parameters to record for, or their shapes; the bound ones if
                None.

        Returns:
            Counts for each type, and what keeps types apart.
        """

    def apply(self, params: Any, plan: Any, *, rng: Any = None) -> Any:
        """Runs a plan: a pure JAX function.

        Args:
            params: The model's parameters.
            plan: A plan made by `plan`.
            rng: A key, for cells that draw random numbers.

        Returns:
            The outputs of all instances, stacked as by ``jax.vmap``.
        """

    def loader(
        self, instances: Iterable[Any], batch_size: int, **options: Any
    ) -> Iterable[Any]:
        """Returns an `edbatch.Loader` of a data set, for this function.

        Args:
            instances: Instances, or recordings of them by this function.
            batch_size: Instances per minibatch.
            **options: Options of `edbatch.Loader`.

        Returns:
            The loader.
        """

    def __call__(
        self, params: Any, instances: Sequence[Any], *, rng: Any = None
    ) -> Any:
        """Runs the model on a minibatch."""
