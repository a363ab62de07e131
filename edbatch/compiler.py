"""Compile options of cells: packing, hoisting, slices, remat, sharing."""

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
    """Compile options of cells; each is one of two or three words.

    The defaults follow the measurements in `docs/results-memory.md`.

    Attributes:
        packing: Run compatible operations of one cell as one operation; ``"auto"`` or
            ``"never"``.
        hoisting: In cells with operands, compute the products of external inputs for
            the whole minibatch at once, before the loops; ``"auto"`` (where it pays for
            the batches of the sample), ``"always"`` or ``"never"``.
        slices: Read operands that are contiguous in an arena as one slice instead of
            gathering them row by row; ``"auto"`` (where it pays for the batches of the
            sample), ``"always"`` or ``"never"``.
        remat: For gradients, recompute matmul outputs in the backward pass instead of
            keeping them. Takes less memory, but more time with states of 128 numbers or
            more; `edbatch.gradient_memory` reports the memory. ``"auto"`` (only in
            cells without operands) or ``"always"``.
        sharing: Run types that differ only in the path of their parameters, such as the
            layers of a stack, in one compiled loop that reads stacked parameters;
            ``"auto"`` (four types or more, none of which looks up rows in a large
            parameter) or ``"never"``.

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
