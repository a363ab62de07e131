"""Options of compilation: what is done to cells on the way to a program."""

from dataclasses import dataclass, fields

from edbatch.arguments import check_word
from edbatch.errors import PlanError

AUTO, ALWAYS, NEVER = "auto", "always", "never"

_WORDS = {
    "packing": (AUTO, NEVER),
    "hoisting": (AUTO, ALWAYS, NEVER),
    "slices": (AUTO, ALWAYS, NEVER),
    "remat": (AUTO, ALWAYS),
    "sharing": (AUTO, NEVER),
}


@dataclass(frozen=True)
class Compiler:
    """Options of compiling cells, as words; each has two or three.

    The defaults follow the measurements in `docs/results-memory.md`.

    Attributes:
        packing: Run operations of one cell that fit together as one; ``"auto"`` or
            ``"never"``.
        hoisting: Run the products of external inputs, in cells that wait for other
            nodes, ahead of these, for the whole minibatch at once; ``"auto"``: where
            it pays for the batches of the sample.
        slices: Read operands that lie in one slice of an arena as a slice and do not
            gather them row by row; ``"auto"``: where it pays for the batches of the
            sample.
        remat: For a gradient, recompute matmul outputs in the backward pass and do not
            keep them. Less memory, and more time with states of 128 numbers or more;
            `edbatch.gradient_memory` says how much memory.
            ``"auto"``: only in cells without operands, or ``"always"``.
        sharing: Run types that differ in the path of their parameters alone, such as
            the layers of a stack, in one compiled loop that reads stacked parameters.
            ``"auto"``: four of them or more, none of which looks up rows in a large
            parameter; or ``"never"``.

    Raises:
        PlanError: An option is not one of its words.

    Example:
        >>> Compiler(packing="never").hoisting
        'auto'
    """

    packing: str = AUTO
    hoisting: str = AUTO
    slices: str = AUTO
    remat: str = AUTO
    sharing: str = AUTO

    def __post_init__(self) -> None:
        for each in fields(self):
            words = _WORDS[each.name]
            what = f"{each.name} of Compiler"
            check_word(PlanError, what, getattr(self, each.name), words)


OFF = Compiler(packing=NEVER, hoisting=NEVER, slices=NEVER, sharing=NEVER)
