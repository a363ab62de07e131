"""Options of memory planning: where values lie, and whether rows are used again."""

from dataclasses import dataclass

from edbatch.arguments import check_number, check_word, renamed
from edbatch.errors import PlanError

LAYOUTS = ("schedule", "aligned")  # ways to lay out a graph
AUTO = "auto"  # one of them for each type
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
            nodes are ordered inside their batches, and batches among each other, so
            that as many operands as possible lie in one slice. ``"auto"``: aligned for
            the types for which it saves more time than it takes to plan, decided from
            a sample (`Batched.fit`), or else from the first minibatch that has a type.
        reuse: Use rows of values again that nothing reads any more: ``"never"`` or
            ``"always"``. Less memory, but no gradient.
        effort: How many operands ``"aligned"`` may look at in search of a better
            alignment than the first. More finds more, and takes longer to plan. None:
            see `default_effort`.

    Raises:
        PlanError: The layout or the reuse is unknown, the effort negative, or an
            option of another type.

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
        """Whether rows of values are used again."""
        return self.reuse == "always"


def default_effort(nodes: int) -> int:
    """Chooses how long to search for a better alignment of a graph.

    Returns:
        How many operands the search may look at. It takes some ten milliseconds, and
        finds all that an exhaustive search does, for up to 32 nodes; less than one for
        more nodes, and large graphs are not searched.

    Example:
        >>> default_effort(30), default_effort(600)
        (50000, 2000)
    """
    return _SMALL_EFFORT if nodes <= _SMALL else _EFFORT
