"""The protocol of batched functions, of one device and of several."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.type_table import TypeTable
from edbatch.plan.cache import CacheInfo

Model = Callable[[Any, Any], Any]


class BatchedFunction(Protocol):
    """The protocol of batched functions, of one device and of several.

    `edbatch.verify` and `edbatch.Loader` need no more than this, so code that runs
    minibatches need not know on how many devices they run.

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
        """The node types met so far with the bound parameter shapes."""

    @property
    def takes_merged(self) -> bool:
        """Whether `plan` takes a recording of several instances."""

    @property
    def cache_info(self) -> CacheInfo:
        """Hits, misses and memory of the cache of plans."""

    @property
    def compiles(self) -> int:
        """How many programs that run plans were compiled so far."""

    def bind(self, params: Any) -> "BatchedFunction":
        """Sets the shapes of the parameters that fresh instances are recorded for."""

    def fit(self, sample: Iterable[Any], *, params: Any = None) -> "BatchedFunction":
        """Decides by a sample what is decided from instances."""

    def record(self, instance: Any, *, params: Any = None) -> DataflowGraph:
        """Records the model on one instance."""

    def record_all(
        self, instances: Iterable[Any], *, params: Any = None
    ) -> list[DataflowGraph]:
        """Records the instances of a data set."""

    def graph(self, instances: Iterable[Any], *, params: Any = None) -> DataflowGraph:
        """Records a minibatch, or merges recordings."""

    def plan(
        self,
        instances: Iterable[Any],
        *,
        params: Any = None,
        pad_to: int | None = None,
    ) -> Any:
        """Schedules and lays out a minibatch; on the host only."""

    def explain(self, instances: Iterable[Any], *, params: Any = None) -> Any:
        """Explains what a minibatch costs, type by type, and what keeps types apart."""

    def apply(self, params: Any, plan: Any, *, rng: Any = None) -> Any:
        """Runs a plan: a pure JAX function."""

    def loader(
        self, instances: Iterable[Any], batch_size: int, **options: Any
    ) -> Iterable[Any]:
        """Returns an `edbatch.Loader` of a data set, for this function."""

    def __call__(
        self, params: Any, instances: Sequence[Any], *, rng: Any = None
    ) -> Any:
        """Runs the model on a minibatch."""
