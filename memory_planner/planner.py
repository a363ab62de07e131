"""Options of memory planning: where values lie, and whether rows are reused."""

from dataclasses import dataclass

from edbatch.arguments import check_number, check_word, renamed
from edbatch.errors import PlanError

LAYOUTS = ("schedule", "aligned")  # ways to lay out a graph
AUTO = "auto"  # chooses one of them for each type
REUSE = ("never", "always")

_EFFORT = 2000
# Up to 32 nodes, 50,000 steps matched exhaustive search on all 1,952 test graphs;
# 20,000 missed one of them, and 2,000 one in fifty.
_SMALL = 32
_SMALL_EFFORT = 50_000

_OF_COMPILER = "it is an option of eb.Compiler: write eb.batch(..., compiler="


@renamed(
    PlanError,
    slices=f"{_OF_COMPILER}eb.Compiler(slices='never'))",
    packing=f"{_OF_COMPILER}eb.Compiler(packing='never'))",
    hoisting=f"{_OF_COMPILER}eb.Compiler(hoisting='always'))",
    remat=f"{_OF_COMPILER}eb.Compiler(remat='always'))",
)
@dataclass(frozen=True)
class Planner:
    """Options of the layout of values in memory.

    The defaults follow the measurements in `docs/results-memory.md`. How cells are
    packed, hoisted and differentiated is in `edbatch.Compiler`.

    Attributes:
        layout: ``"schedule"``: values lie in the order of the schedule. ``"aligned"``:
            nodes are reordered within their batches, and so are the blocks of rows of
            the batches, to read as many operands as possible in place. ``"auto"``:
            aligned for the types for which this saves more time than it takes to plan,
            decided from a sample (`Batched.fit`), otherwise from the first minibatch
            with the type.
        reuse: Whether to reuse rows whose values are not read any more: ``"never"`` or
            ``"always"``. Reuse saves memory but rules out gradients.
        effort: Maximum number of operands and nodes that ``"aligned"`` may examine in
            search of a better alignment than the first. A larger number finds more and
            takes longer to plan. None: see `default_effort`.

    Raises:
        PlanError: The layout or the reuse is unknown, the effort is negative, or an
            option has the wrong type.

    Example:
        >>> Planner(layout="aligned").reuse
        'never'
    """

    layout: str = AUTO
    reuse: str = "never"
    effort: int | None = None

    def __post_init__(self) -> None:
        check_word(PlanError, "layout of Planner", self.layout, (AUTO, *LAYOUTS))
        check_word(PlanError, "reuse of Planner", self.reuse, REUSE)
        if self.effort is not None:
            name = "the effort of a layout"
            check_number(PlanError, name, self.effort, 0, whole=True)

    @property
    def reuses_rows(self) -> bool:
        """Whether rows of values are reused."""
        return self.reuse == "always"


def default_effort(nodes: int) -> int:
    """Returns the effort of the search for a better alignment of a graph.

    Args:
        nodes: Number of nodes of the graph.

    Returns:
        Maximum number of operands and nodes that the search may examine. For up to 32
        nodes, the search takes some ten milliseconds and finds everything that an
        exhaustive search does. For more nodes it takes less than one millisecond, and
        large graphs are not searched at all.

    Example:
        >>> default_effort(30), default_effort(600)
        (50000, 2000)
    """
    return _SMALL_EFFORT if nodes <= _SMALL else _EFFORT
