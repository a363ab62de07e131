"""Runs streams by one switch per chunk: fine programs on GPUs.

On a GPU, a loop whose number of iterations is known only on the device costs one round
trip to the host per iteration, and nested loops cost several per chunk. This program is
one loop over the chunks, as many as its bucket has, so the host knows the number; the
loop's body switches to the code for the chunk (XLA compiles a switch into a CUDA graph,
in which the device chooses the branch).

A switch copies the results of its branches, so branches do not return arenas: they
return the rows to write, padded to the largest number of any branch, and the positions
of these rows. After the switch the rows are written in place
(`edbatch.executor.late_writes`).

Gain, counted in programs compiled for an H200 (`experiments/gpu_counts.py`,
docs/scaling.md): the forward pass of 64 trees makes 0 round trips to the host instead
of 150, and launches 47 kernels and graphs instead of 293.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from edbatch.cell.deferred_rows import DeferredRows
from edbatch.executor.chunk import Chunk, read_chunk
from edbatch.executor.late_writes import LateWrites, Packed, Written
from edbatch.executor.loop_name import loop_name
from edbatch.executor.program import ProgramShape
from edbatch.stream.format import record_format
from edbatch.stream.loop import Loop
from edbatch.stream.stream import Stream

_State = TypeVar("_State")


def run_switch(
    program: ProgramShape,
    stream: Stream,
    body_of: Callable[[Loop], Callable[[Chunk, _State], _State]],
    state: _State,
    *,
    end: Array | None = None,
) -> tuple[Array, _State]:
    """Visits the chunks of a stream by one switch each; like `walk` of `loops`.

    Args:
        program: The program; its ``chunks`` is the number of iterations. If it is 0,
            the stream determines the number, which costs a round trip per chunk.
        stream: The stream.
        body_of: Returns a loop's body, from a chunk and a state to the next state. The
            body must not read rows that it has written.
        state: The initial state: a pytree of arrays, and of ``int32`` scalars as
            counters.
        end: Where the last record ends, a scalar, to visit chunks in reverse.

    Returns:
        The position in the records after the last chunk visited, and the final state.
    """
    reverse = end is not None
    form, numbers, arrays = _divide(state)
    counters = [jnp.int32(0) if end is None else end, *numbers]
    branches = [
        _branch(program, stream, loop, body_of(loop), form, reverse)
        for loop in program.loops
    ]
    writes = LateWrites.of([_written(each, counters, arrays) for each in branches])
    steps = jnp.arange(len(stream.trips), dtype=jnp.int32)[:, None]
    trips = jnp.where(steps < stream.num_steps, stream.trips, 0)
    ends = jnp.cumsum(trips.ravel(), dtype=jnp.int32)  # chunks, [S P]
    total = ends[-1]
    cases = [*(_packing(each, writes) for each in branches), _idle(writes)]

    def visit(k: Array, carry: Any) -> Any:
        counters, groups = carry
        place = total - 1 - k if reverse else k
        loop = (ends <= place).sum(dtype=jnp.int32) % len(program.loops)
        loop = jnp.where(k < total, loop, len(program.loops))
        numbers, packed = lax.switch(loop, cases, counters, groups)
        counters, packed = _without_numbers(numbers, len(counters), packed)
        return counters, writes.write(groups, packed)

    carry = jnp.stack(counters), writes.join(arrays)
    counts, groups = lax.fori_loop(0, program.chunks or total, visit, carry)
    return counts[0], form.join(counts[1:], writes.divide(groups))


class _Form(NamedTuple):
    """Structure of a state: which leaves are counters and which are arrays."""

    treedef: Any
    is_counter: list[bool]

    def join(self, counters: Iterable[Array], arrays: Iterable[Any]) -> Any:
        """Rebuilds the state."""
        numbers, own = iter(counters), iter(arrays)
        leaves = [next(numbers if each else own) for each in self.is_counter]
        return jax.tree.unflatten(self.treedef, leaves)

    def divide(self, state: Any) -> tuple[list[Array], list[Any]]:
        """Returns the counters and the arrays of a state of this form."""
        leaves = [*zip(jax.tree.leaves(state), self.is_counter, strict=True)]
        counters = [leaf for leaf, is_counter in leaves if is_counter]
        return counters, [leaf for leaf, is_counter in leaves if not is_counter]


def _divide(state: Any) -> tuple[_Form, list[Array], list[Array]]:
    """Returns a state's form, its counters and its arrays."""
    leaves, treedef = jax.tree.flatten(state)
    # Floating scalars are sums, such as the cotangent of a scalar parameter.
    counts = [leaf.ndim == 0 and leaf.dtype == jnp.int32 for leaf in leaves]
    form = _Form(treedef, counts)
    return form, *form.divide(state)


def _branch(
    program: ProgramShape,
    stream: Stream,
    loop: Loop,
    body: Callable[[Chunk, Any], Any],
    form: _Form,
    reverse: bool,
) -> "_Branch":
    """Returns a function that runs a chunk of a loop and collects its writes."""
    node_type, target = program.types.types[loop.type_id], program.options.target
    length = record_format(node_type, loop).length

    def run(counters: Array, rows: list[DeferredRows]) -> _Done:
        before = form.join(counters[1:], rows)
        at = counters[0] - length if reverse else counters[0]
        chunk = read_chunk(node_type, loop, target, stream.records, at)
        kept, put = form.divide(body(chunk, before))
        next_at = at if reverse else at + length
        return _Done(jnp.stack([next_at, *kept]), put)

    return jax.named_scope(loop_name(node_type, loop))(run)


def _packing(run: "_Branch", writes: LateWrites) -> Callable[..., Any]:
    """Returns a branch of the switch, which returns its writes packed."""

    def call(counters: Array, groups: list[Array]) -> Any:
        done = run(counters, writes.views(groups))
        return _with_numbers(done.counters, writes.pack(done.rows))

    return call


def _idle(writes: LateWrites) -> Callable[..., Any]:
    """Returns the branch for iterations beyond the last chunk, which writes nothing."""

    def call(counters: Array, groups: list[Array]) -> Any:
        return _with_numbers(counters, writes.pack(writes.views(groups)))

    return call


class _Done(NamedTuple):
    """Result of a branch: the next counters, and the rows with its writes."""

    counters: Array
    rows: list[DeferredRows]


_Branch = Callable[[Array, list[DeferredRows]], _Done]


def _with_numbers(counters: Array, packed: list[Packed]) -> Any:
    """Puts all scalars into one array, which costs one kernel."""
    numbers = [x for each in packed for x in (*each.first, *each.counts)]
    rest = [each._replace(first=[], counts=[]) for each in packed]
    if numbers:
        counters = jnp.concatenate([counters, jnp.stack(numbers)])
    return counters, rest


def _without_numbers(
    numbers: Array, counters: int, packed: list[Packed]
) -> tuple[Array, list[Packed]]:
    """Takes the scalars apart; the inverse of `_with_numbers`."""
    rest = iter(numbers[k] for k in range(counters, len(numbers)))
    found = [
        each._replace(
            first=[next(rest) for _ in each.values],
            counts=[next(rest) for _ in each.values],
        )
        for each in packed
    ]
    return numbers[:counters], found


def _written(
    run: _Branch,
    counters: Sequence[Array],
    arrays: Sequence[Array],
) -> list[Written]:
    """Finds what a branch writes to each array, without executing it."""
    found: list[Written] = []

    def note(counters: Array, arrays: Sequence[Array]) -> None:
        done = run(counters, [DeferredRows(each) for each in arrays])
        found.extend(
            Written.of(array, rows.writes)
            for array, rows in zip(arrays, done.rows, strict=True)
        )

    jax.eval_shape(note, jnp.stack(counters), arrays)
    return found
