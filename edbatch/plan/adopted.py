"""Converts plans of one table of types to plans of another."""

from dataclasses import replace

from edbatch.cell import HoistedTable, HoistedTypes
from edbatch.executor.program import ProgramShape
from edbatch.graph.adoption import Adoption
from edbatch.graph.type_table import TypeTable
from edbatch.plan.plan import Plan


def recorded_types(types: TypeTable) -> TypeTable:
    """Returns the recorded types that a plan's types are, or are derived from."""
    return types.split.recorded if isinstance(types, HoistedTable) else types


def adopt_plan(plan: Plan, adoption: Adoption, split: HoistedTypes) -> Plan:
    """Renumbers the types and array kinds of a plan.

    Args:
        plan: A plan of one table of types.
        adoption: Positions of its recorded types in another table.
        split: The types of that table as they run.

    Returns:
        The same plan for the other table.

    Raises:
        PickleError: A cell is divided in the plan but cannot be divided here.
    """
    program, result = plan.shape.program, plan.shape.result
    types = program.types
    if isinstance(types, HoistedTable):
        parts = types.split.parts
        used = sorted({loop.type_id for loop in program.loops})
        used += [type_id for type_id, _ in program.type_rows]
        place = {
            k: split.place(
                parts[k]._replace(type_id=int(adoption.type_ids[parts[k].type_id]))
            )
            for k in dict.fromkeys(used)
        }
        own: TypeTable = split.table
    else:
        place = dict(enumerate(adoption.type_ids.tolist()))
        own = adoption.types
    return replace(
        plan,
        shape=replace(
            plan.shape,
            program=_renumber(program, own, adoption, place),
            result=replace(result, tree=result.tree.renumber(adoption.kind)),
        ),
        pools={adoption.kind(kind): pool for kind, pool in plan.pools.items()},
    )


def _renumber(
    program: ProgramShape, types: TypeTable, adoption: Adoption, place: dict[int, int]
) -> ProgramShape:
    """Renumbers a program's types and array kinds; loops keep their order."""
    return replace(
        program,
        types=types,
        loops=tuple(
            loop._replace(type_id=place[loop.type_id]) for loop in program.loops
        ),
        arena_rows=tuple(
            sorted((adoption.kind(kind), rows) for kind, rows in program.arena_rows)
        ),
        type_rows=tuple(
            sorted((place[type_id], rows) for type_id, rows in program.type_rows)
        ),
    )
