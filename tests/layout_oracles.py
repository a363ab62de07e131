"""The maximum number of bytes that any layout of a small graph can read in place.

For models whose types all have outputs of the same kinds, so that every column holds
every block: the models of `trees`.
"""

import itertools

import numpy as np


class Problem:
    """A scheduled graph as plain lists."""

    def __init__(self, graph, schedule, sizes):
        kinds = [each.output_kinds for each in graph.types.types]
        assert len(set(kinds)) == 1, "all columns hold all blocks"
        starts = schedule.batch_start.tolist()
        order = schedule.order.tolist()
        self.batches = [order[a:b] for a, b in itertools.pairwise(starts)]
        self.batch_of = {v: b for b, each in enumerate(self.batches) for v in each}
        self.widths = [sizes.cut(len(each)) for each in self.batches]
        self.slots = []  # for each batch: values by node, and bytes of a row
        node = np.repeat(np.arange(graph.num_nodes), np.diff(graph.value_start))
        leaf = np.arange(graph.num_values) - graph.value_start[node]
        self.place_of = list(zip(node.tolist(), leaf.tolist(), strict=True))
        for nodes in self.batches:
            node_type = graph.types.types[graph.node_type[nodes[0]]]
            self.slots.append(
                [
                    (
                        {
                            v: self.place_of[graph.operands[graph.operand_start[v] + k]]
                            for v in nodes
                        },
                        graph.types.avals[kind].num_bytes,
                    )
                    for k, kind in enumerate(node_type.operand_kinds)
                ]
            )

    def rows(self, b):
        """Number of rows that a batch writes, padding included."""
        return sum(self.widths[b])

    def chunks(self, b, nodes):
        """Cuts a batch's nodes, in their order, into chunks."""
        at = 0
        for width in self.widths[b]:
            yield nodes[at : at + width]
            at += width


def best_of_all(problem):
    """Tries all orders of nodes and of blocks; feasible for about eight nodes."""
    return max(
        _bytes_in_place(problem, nodes, blocks)
        for nodes in itertools.product(*map(itertools.permutations, problem.batches))
        for blocks in itertools.permutations(range(len(problem.batches)))
    )


def _bytes_in_place(problem, nodes, blocks):
    row_of = {}
    placed = []  # first row, end of padding, batch
    at = 0
    for b in blocks:
        if any(end > at and other > b for _, end, other in placed):
            at = max(end for _, end, _ in placed)
        row_of |= {v: at + k for k, v in enumerate(nodes[b])}
        placed.append((at, at + problem.rows(b), b))
        at += len(nodes[b])
    total = 0
    for b, slots in enumerate(problem.slots):
        for chunk in problem.chunks(b, nodes[b]):
            for read, row_bytes in slots:
                where = [(row_of[u], leaf) for u, leaf in (read[v] for v in chunk)]
                first, leaf = where[0]
                if where == [(first + k, leaf) for k in range(len(chunk))]:
                    total += row_bytes * len(chunk)
    return total


def best_in_place(problem):
    """The result of `best_of_all`, feasible for a few more nodes.

    The order of a batch that reads nothing matters only through the slices that it
    allows. So all orders of the other batches are tried; for each, branch and bound
    searches the sets of slices that are possible together.
    """
    sources = [b for b, slots in enumerate(problem.slots) if not slots]
    readers = [b for b, slots in enumerate(problem.slots) if slots]
    best = 0
    for orders in itertools.product(
        *(itertools.permutations(problem.batches[b]) for b in readers)
    ):
        constraints = _constraints(problem, dict(zip(readers, orders, strict=True)))
        best = _search(problem, sources, constraints, [], 0, best)
    return best


def _constraints(problem, orders):
    """Lists adjacency constraints (bytes, links, borders), most bytes first."""
    found = {}
    for b, nodes in orders.items():
        for chunk in problem.chunks(b, nodes):
            for read, row_bytes in problem.slots[b]:
                constraint = _constraint(problem, orders, [read[v] for v in chunk])
                if constraint is not None:
                    own = row_bytes * len(chunk)
                    found[constraint] = found.get(constraint, 0) + own
    return sorted(((size, *own) for own, size in found.items()), reverse=True)


def _constraint(problem, orders, where):
    """The adjacency constraint that makes the places a slice, or None if impossible."""
    if len({leaf for _, leaf in where}) > 1:
        return None
    links, borders = [], []
    for (u, _), (v, _) in itertools.pairwise(where):
        a, b = problem.batch_of[u], problem.batch_of[v]
        if a != b:
            if a in orders and orders[a][-1] != u:
                return None
            if b in orders and orders[b][0] != v:
                return None
            borders.append((u, v))
        elif a not in orders:
            links.append((u, v))
        elif orders[a].index(v) != orders[a].index(u) + 1:
            return None
    return tuple(links), tuple(borders)


def _search(problem, sources, constraints, taken, size, best):
    if size > best and not constraints:
        return size
    if size + sum(each[0] for each in constraints) <= best:
        return best
    more = [*taken, constraints[0]]
    if _fit(problem, sources, more):
        best = _search(
            problem, sources, constraints[1:], more, size + constraints[0][0], best
        )
    return _search(problem, sources, constraints[1:], taken, size, best)


def _fit(problem, sources, constraints):
    """Whether all these slices are possible together."""
    links = {link for _, each, _ in constraints for link in each}
    borders = {border for _, _, each in constraints for border in each}
    after, before = dict(links), {v: u for u, v in links}
    if len(after) < len(links) or len(before) < len(links):
        return False
    follows = {problem.batch_of[u]: problem.batch_of[v] for u, v in borders}
    last = {problem.batch_of[u]: u for u, _ in borders}
    first = {problem.batch_of[v]: v for _, v in borders}
    if len(last) < len(borders) or len(first) < len(borders):
        return False
    return all(
        _is_order(problem.batches[b], after, before, first.get(b), last.get(b))
        for b in sources
    ) and _can_be_written(problem, follows)


def _is_order(nodes, after, before, first, last):
    """Whether nodes can be ordered with these links, and these nodes at the ends."""
    heads = [v for v in nodes if v not in before]
    runs = [_run(v, after) for v in heads]
    if sum(map(len, runs)) < len(nodes):  # the others form cycles
        return False
    firsts = [run for run in runs if run[0] == first]
    lasts = [run for run in runs if run[-1] == last]
    if (first is not None and not firsts) or (last is not None and not lasts):
        return False
    return not (firsts and firsts == lasts and len(runs) > 1)


def _run(v, after):
    run = [v]
    while run[-1] in after:
        run.append(after[run[-1]])
    return run


def _can_be_written(problem, follows):
    """Whether chains of blocks do not overwrite each other with padding."""
    chained = 0
    for b in set(range(len(problem.batches))) - set(follows.values()):
        at = 0
        ends = []  # end of the padding, and the batch that writes it
        for a in _run(b, follows):
            if any(end > at and other > a for end, other in ends):
                return False
            ends.append((at + problem.rows(a), a))
            at += len(problem.batches[a])
            chained += 1
    return chained == len(problem.batches)  # otherwise there is a cycle
