"""Counts of operations from the HLO of a compiled program.

Counts are of what stands in the compiled text, once per loop body, not of what is
executed. A *product* is an HLO ``dot`` or a call of a library for one; a *gather* reads
rows one by one, a *slice* reads or writes consecutive ones. Fused computations are
looked into for these, and count as one *operation* each.
"""

import re
from dataclasses import dataclass

import jax

from edbatch.plan import Plan

_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?\S+ = (?:\([^=]*\)|\S+) ([a-z][\w-]*)\(")
# What names values and costs nothing by itself.
_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast"}
_LIBRARY_PRODUCT = re.compile(r"custom_call_target=\"[^\"]*(?:matmul|gemm|dot)", re.I)


@dataclass(frozen=True)
class ProgramCounts:
    """Counts of one compiled program.

    Attributes:
        loops: Its loops over chunks.
        operations: Operations, a fusion being one, per loop.
        products: Matrix products per loop.
        gathers: Gathers per loop.
        slices: Reads and writes of slices per loop.
    """

    loops: int
    operations: float
    products: float
    gathers: float
    slices: float


def count_program(
    run: "jax.stages.Wrapped", params: object, plan: Plan
) -> ProgramCounts:
    """Compiles a program once more, and counts.

    Args:
        run: The jitted function ``run(params, plan)``.
        params: The parameters.
        plan: A plan.
    """
    text = run.lower(params, plan).compile().as_text() or ""
    return count_text(text, len(plan.shape.program.loops))


def count_text(text: str, loops: int) -> ProgramCounts:
    """Counts in the text of a compiled HLO module.

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
