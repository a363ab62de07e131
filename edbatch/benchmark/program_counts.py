"""Counts operations in the HLO of a compiled program.

Counts are static: instructions in the compiled text, where each loop body occurs once,
are counted, not executed instructions. A *product* is an HLO ``dot`` or a library
call for one; a *gather* reads rows one by one; a *slice* reads or writes consecutive
rows. All three are counted inside fused computations, too. A fusion counts as one
*operation*.
"""

import re
from dataclasses import dataclass

import jax

from edbatch.plan import Plan

_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?\S+ = (?:\([^=]*\)|\S+) ([a-z][\w-]*)\(")
# Instructions that only name values and cost nothing.
_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast"}
_LIBRARY_PRODUCT = re.compile(r"custom_call_target=\"[^\"]*(?:matmul|gemm|dot)", re.I)


@dataclass(frozen=True)
class ProgramCounts:
    """Counts of one compiled program.

    Attributes:
        loops: Number of loops over chunks.
        operations: Operations per loop; a fusion counts as one.
        products: Matrix products per loop.
        gathers: Gathers per loop.
        slices: Slice reads and writes per loop.
    """

    loops: int
    operations: float
    products: float
    gathers: float
    slices: float


def count_program(
    run: "jax.stages.Wrapped", params: object, plan: Plan
) -> ProgramCounts:
    """Compiles a plan's program again and counts its operations.

    Args:
        run: The jitted function ``run(params, plan)``.
        params: The parameters.
        plan: A plan.
    """
    text = run.lower(params, plan).compile().as_text() or ""
    return count_text(text, len(plan.shape.program.loops))


def count_text(text: str, loops: int) -> ProgramCounts:
    """Counts operations in the text of a compiled HLO module.

    Args:
        text: The text of the module.
        loops: Number of loops over chunks, by which the counts are divided.

    Example:
        >>> count_text('''
        ... %fused (a: f32[4,2]) -> f32[2,2] {
        ...   %a = f32[4,2]{1,0} parameter(0)
        ...   ROOT %b = f32[2,2]{1,0} gather(%a, %i), offset_dims={1}
        ... }
        ... ENTRY %main (a: f32[4,2]) -> f32[2,2] {
        ...   %f = f32[2,2]{1,0} fusion(%a), kind=kLoop, calls=%fused
        ...   ROOT %d = f32[2,2]{1,0} dot(%f, %f), lhs_contracting_dims={1}
        ... }
        ... ''', 1)
        ProgramCounts(loops=1, operations=2.0, products=1.0, gathers=1.0, slices=0.0)
    """
    operations = products = gathers = slices = 0
    fused = set(re.findall(r"kind=k\w+, calls=%?([\w.-]+)", text))
    inside = ""
    for line in text.splitlines():
        if line and not line[0].isspace():
            inside = line.removeprefix("ENTRY ").lstrip("%").split(" ")[0]
        found = _INSTRUCTION.match(line)
        if not found:
            continue
        name = found[1]
        products += name == "dot" or (
            name == "custom-call" and bool(_LIBRARY_PRODUCT.search(line))
        )
        gathers += name == "gather"
        slices += name in ("dynamic-slice", "dynamic-update-slice")
        operations += name not in _FREE and inside not in fused
    count = max(1, loops)
    return ProgramCounts(
        loops, operations / count, products / count, gathers / count, slices / count
    )
