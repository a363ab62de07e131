"""What the memory planner is asked to do."""

from dataclasses import dataclass

from edbatch.arguments import check_flag, check_number
from edbatch.errors import PlanError, nearest, shown

LAYOUTS = ("schedule", "aligned")
HOISTING = ("auto", "always", "never")

_EFFORT = 2000
# Graphs of so few nodes are searched until nothing is left, in the tests, that an
# exhaustive search finds. 20,000 left one of 1,952, and 2,000 one of fifty.
_SMALL = 32
_SMALL_EFFORT = 50_000


@dataclass(frozen=True)
class Planner:
    """How values are laid out in memory and how cells are packed.

    The defaults follow the measurements in `docs/results-memory.md`.

    Attributes:
        layout: ``"schedule"``: values lie in the order of the schedule. ``"aligned"``:
            nodes are ordered inside their batches, and batches among each other, so
            that as many operands as possible lie in one slice.
        slices: Read operands that lie in one slice of an arena as a slice; else all are
            gathered row by row.
        packing: Run operations of one cell that fit together as one.
        hoisting: Whether the products of external inputs, in cells that wait for other
            nodes, run ahead of these, for the whole minibatch at once: ``"auto"``,
            where it pays, ``"always"`` or ``"never"``.
        reuse: Use rows of values again that nobody reads any more. Less memory, but no
            gradient.
        remat: For a gradient, compute what cells' products gave a second time instead
            of keeping it. Less memory, more time; `edbatch.gradient_memory` says how
            much.
        effort: How many operands ``"aligned"`` may look at in search of a better
            alignment than the first. More finds more, and takes longer to plan. None:
            see `default_effort`.

    Raises:
        PlanError: The layout or the hoisting is unknown, the effort negative, or an
            option of another type.

    Example:
        >>> Planner(packing=False).layout
        'schedule'
    """

    layout: str = "schedule"
    slices: bool = True
    packing: bool = True
    hoisting: str = "auto"
    reuse: bool = False
    remat: bool = False
    effort: int | None = None

    def __post_init__(self) -> None:
        for name in ("slices", "packing", "reuse", "remat"):
            check_flag(PlanError, f"of Planner the option {name}", getattr(self, name))
        if self.effort is not None:
            check_number(PlanError, "the effort of a layout", self.effort, whole=True)
        if self.layout not in LAYOUTS:
            raise PlanError(
                f"a layout is one of {', '.join(LAYOUTS)} but this is"
                f" {shown(self.layout)}; {nearest(str(self.layout), LAYOUTS)}"
            )
        if self.hoisting not in HOISTING:
            raise PlanError(
                f"hoisting is one of {', '.join(HOISTING)} but this is"
                f" {shown(self.hoisting)}; {nearest(str(self.hoisting), HOISTING)}"
            )
        if self.effort is not None and self.effort < 0:
            raise PlanError(
                f"the effort of a layout is 0 or more but is {self.effort}; leave it"
                " out for one that follows the size of the graph"
            )


def default_effort(nodes: int) -> int:
    """Chooses how long to search for a better alignment of a graph.

    Args:
        nodes: Number of nodes.

    Returns:
        How many operands the search may look at. It takes some ten milliseconds, and
        finds all that an exhaustive search does, for up to 32 nodes; less than one for
        more nodes, and large graphs are not searched.

    Example:
        >>> default_effort(30), default_effort(600)
        (50000, 2000)
    """
    return _SMALL_EFFORT if nodes <= _SMALL else _EFFORT


OFF = Planner(layout="schedule", slices=False, packing=False, hoisting="never")
