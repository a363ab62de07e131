"""Finds types of one cell that share no batch, and the reasons.

Two nodes can share a batch if they agree in all aspects of their type. Types are
compared argument by argument (`edbatch.explain.facts`). An *aspect*, such as the dtype
of one argument, keeps types apart if they agree in everything else; then this aspect
alone would have to change. Types that differ from each of the others in several aspects
are reported with the aspects in which they differ from the most similar type.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from edbatch.explain.facts import Aspect, Facts, Reason, facts_of
from edbatch.explain.fixes import fix_of
from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.node_type import TypeKey
from edbatch.policies.heuristics import Greedy

_MOST_VALUES = 8  # maximum number of values of an aspect that are listed


@dataclass(frozen=True)
class Apart:
    """Types of one cell that share no batch, and why.

    Attributes:
        cell: Name of the cell.
        types: The types.
        reason: What differs: ``"dtype"``, ``"shape"``, ``"parameters"``, ``"list
            length"``, ``"padded length"``, ``"static argument"``, ``"source"`` (an
            array from outside in some calls, the output of a cell in others),
            ``"structure"`` or ``"definition"``.
        argument: The cell's argument that differs; empty if the cell itself differs.
        values: The distinct values of this aspect among the types; if there are more
            than eight, the first eight and the number of others.
        also: Further aspects in which the types differ, as text; if there are any, all
            of them together keep the types apart.
        nodes: Nodes of these types in the minibatch.
        batches: Batches of these types with the policy ``greedy``.
        batches_together: Batches of these types if they agreed in this aspect, with
            everything else unchanged; with further aspects, if they were one type.
        fix: What to change, as a clause.

    Example:
        >>> import edbatch as eb
        >>> @eb.cell
        ... def double(params, x):
        ...     return params * x
        >>> def model(params, x):
        ...     return double(params, double(params, x))
        >>> batched = eb.batch(model, params=2.0)
        >>> [apart] = batched.explain([1.0, 5.0]).apart
        >>> apart.reason, apart.values
        ('source', ('an input', "a cell's output"))
    """

    cell: str
    types: tuple[TypeKey, ...]
    reason: Reason
    argument: str
    values: tuple[str, ...]
    also: tuple[str, ...]
    nodes: int
    batches: int
    batches_together: int
    fix: str

    def __str__(self) -> str:
        """Returns the finding as a sentence."""
        what = f"{self.reason} of {self.argument!r}" if self.argument else self.reason
        also = f" (and {', '.join(self.also)})" if self.also else ""
        return (
            f"{len(self.types)} types of {self.cell!r} differ in {what}{also}:"
            f" {', '.join(self.values)}; {self.nodes:,} nodes in {self.batches:,}"
            f" batches, as one type {self.batches_together:,}; {self.fix}"
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the finding as JSON values."""
        found = asdict(self) | {"types": [str(each) for each in self.types]}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in found.items()}


def find_apart(graph: DataflowGraph) -> tuple[Apart, ...]:
    """Finds types of one cell that share no batch.

    Args:
        graph: A minibatch, as it was recorded.

    Returns:
        The findings, most nodes first; types that the minibatch lacks are not compared.
    """
    types = graph.types
    nodes = np.bincount(graph.node_type, minlength=len(types))
    cells: dict[Hashable, list[Facts]] = defaultdict(list)
    for type_id in np.flatnonzero(nodes).tolist():
        facts = facts_of(types.types[type_id], types)
        cells[facts.cell].append(facts)
    found = [
        _finding(group, aspects, graph, nodes)
        for own in cells.values()
        if len(own) > 1
        for aspects, group in _groups(own)
    ]
    return tuple(sorted(found, key=lambda each: (-each.nodes, each.cell, each.reason)))


def _groups(cell: Sequence[Facts]) -> list[tuple[list[Aspect], list[Facts]]]:
    """Finds groups of a cell's types, and the aspects that keep each group apart."""
    found: list[tuple[list[Aspect], list[Facts]]] = []
    explained: set[int] = set()
    for aspect in dict.fromkeys(each for facts in cell for each in facts.values):
        same: dict[Hashable, list[Facts]] = defaultdict(list)
        for facts in cell:
            same[facts.without(aspect)].append(facts)
        groups = [group for group in same.values() if len(group) > 1]
        explained |= {facts.type_id for group in groups for facts in group}
        merged = {facts.type_id: facts for group in groups for facts in group}
        if merged:
            found.append(([aspect], list(merged.values())))
    for facts in cell:
        if facts.type_id not in explained:
            others = [each for each in cell if each is not facts]
            nearest = min(others, key=lambda each: len(facts.differing(each)))
            explained |= {facts.type_id, nearest.type_id}
            found.append((facts.differing(nearest), [nearest, facts]))
    return found


def _finding(
    group: Sequence[Facts],
    aspects: Sequence[Aspect],
    graph: DataflowGraph,
    nodes: np.ndarray,
) -> Apart:
    first, *rest = sorted(aspects, key=lambda each: each.rank)
    ids = sorted(facts.type_id for facts in group)
    values = tuple(dict.fromkeys(facts.text(first) for facts in group))
    shown = values[:_MOST_VALUES]
    if len(values) > len(shown):
        shown = (*shown, f"{len(values) - len(shown)} more")
    now, together = _batches(graph, group, first if not rest else None)
    return Apart(
        cell=group[0].name,
        types=tuple(graph.types.types[each].key for each in ids),
        reason=first.reason,
        argument=first.argument,
        values=shown,
        also=tuple(map(str, rest)),
        nodes=int(nodes[ids].sum()),
        batches=now,
        batches_together=together,
        fix=fix_of(first, group),
    )


def _batches(
    graph: DataflowGraph, group: Sequence[Facts], aspect: Aspect | None
) -> tuple[int, int]:
    """Counts the batches of some types with greedy: as they are, and if they agreed.

    Args:
        graph: The minibatch.
        group: The types.
        aspect: The aspect in which they would agree; None for all aspects.
    """
    structure, own = graph.structure, {facts.type_id for facts in group}
    first: dict[Hashable, int] = {}
    number = np.arange(structure.num_types, dtype=np.int32)
    for facts in group:
        rest = None if aspect is None else facts.without(aspect)
        number[facts.type_id] = first.setdefault(rest, facts.type_id)
    schedules = [
        Greedy().schedule(each)
        for each in (
            structure,
            replace(structure, node_type=number[structure.node_type]),
        )
    ]
    now, together = (
        int(np.isin(each.batch_type, list(own)).sum()) for each in schedules
    )
    return now, together
