"""Runs streams by loops: all programs except fine ones on GPUs (see `switch`).

The program holds one loop per type, width and set of operands that are read as slices.
A step passes over all of them; the number of iterations of each, possibly zero, comes
from the stream. Loops update the arenas in place, whereas ``lax.cond`` or
``lax.switch`` around them would copy them; a test checks the compiled HLO for copies.

With many loops, those that do not iterate would cost more than those that do. So loops
are enclosed in groups, each inside an outer loop of zero or one iteration, which skips
the whole group at once.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from edbatch.cell.half_rows import carried, on_bits, uncarried
from edbatch.cell.program import run_rows
from edbatch.executor.arenas import Arenas
from edbatch.executor.base import Prepared
from edbatch.executor.chunk import Chunk, read_chunk, read_inputs, write_outputs
from edbatch.executor.coarse import coarse_step
from edbatch.executor.loop_name import loop_name
from edbatch.executor.program import ProgramShape
from edbatch.executor.switch import run_switch
from edbatch.executor.touched import joined, part_of, touched
from edbatch.stream.format import record_format
from edbatch.stream.loop import Loop
from edbatch.stream.stream import Stream

_State = TypeVar("_State")
_Body = Callable[[Chunk, _State], _State]


@dataclass(frozen=True)
class Loops:
    """Runs streams by nested loops, or by a switch on some targets; see `Executor`."""

    def run(
        self,
        program: ProgramShape,
        prepared: Prepared,
        arenas: Arenas,
        pools: Arenas,
        stream: Stream,
    ) -> Arenas:
        """Runs a stream; see `Executor.run`."""

        def body_of(loop: Loop) -> _Body[Arenas]:
            cell, packed = program.cell(loop.type_id), prepared[loop.type_id]

            def body(chunk: Chunk, arenas: Arenas) -> Arenas:
                own = program.own(loop.type_id, packed, chunk.member)
                repeat = program.repeats_rows(loop.type_id)
                inputs = read_inputs(chunk, arenas, pools, repeat=repeat)
                outputs = run_rows(cell, chunk.width, own, *inputs)
                return write_outputs(arenas, chunk, outputs)

            return body

        return walk(program, stream, body_of, arenas)[1]


def walk(
    program: ProgramShape,
    stream: Stream,
    body_of: Callable[[Loop], _Body[_State]],
    state: _State,
    *,
    end: Array | None = None,
) -> tuple[Array, _State]:
    """Visits the chunks of a stream, in their order or from the last to the first.

    Args:
        program: The program.
        stream: The stream.
        body_of: Returns a loop's body, from a chunk and a state to the next state.
        state: The initial state, a pytree.
        end: Where the last record ends, a scalar, to visit chunks in reverse; None to
            visit them in order.

    Returns:
        The position in the records after the last chunk visited, and the final state.
    """
    target = program.options.target
    if target.control == "switch" and program.options.tier == "fine":
        return run_switch(program, stream, body_of, state, end=end)
    reverse = end is not None
    if target.integer_rows:
        body_of, state = _on_bits(body_of), carried(state)
    make = coarse_step if program.options.tier == "coarse" else fine_step
    run_step = make(program, stream.records, body_of, reverse=reverse)

    def step(s: Array, carry: tuple[Array, _State]) -> tuple[Array, _State]:
        trips = stream.trips[stream.num_steps - 1 - s if reverse else s]
        return run_step(trips, carry)

    start = jnp.int32(0) if end is None else end
    at, state = lax.fori_loop(0, stream.num_steps, step, (start, state))
    return at, uncarried(state)


def _on_bits(
    body_of: Callable[[Loop], _Body[_State]],
) -> Callable[[Loop], _Body[_State]]:
    """Adapts loop bodies to a state that carries bfloat16 arrays as bits."""
    return lambda loop: on_bits(body_of(loop))


def fine_step(
    program: ProgramShape,
    records: Array,
    body_of: Callable[[Loop], _Body[_State]],
    *,
    reverse: bool,
) -> Callable[[Array, tuple[Array, _State]], tuple[Array, _State]]:
    """Returns a function that visits the chunks of a step, with one loop per `Loop`.

    Args:
        program: The program.
        records: Records of all chunks; ``[I] int32``.
        body_of: Returns a loop's body, from a chunk and a state to the next state.
        reverse: Whether to visit chunks from the last to the first.

    Returns:
        A function from the step's trips, the position in the records and the state to
        the next position and state.
    """

    def visit(loop: Loop) -> Callable[[Any, Any], Any]:
        node_type, body = program.types.types[loop.type_id], body_of(loop)
        read = partial(read_chunk, node_type, loop, target, records)
        length = record_format(node_type, loop).length

        def forward(_: Any, carry: tuple[Array, _State]) -> tuple[Array, _State]:
            at, state = carry
            return at + length, body(read(at), state)

        def backward(_: Any, carry: tuple[Array, _State]) -> tuple[Array, _State]:
            at, state = carry[0] - length, carry[1]
            return at, body(read(at), state)

        return backward if reverse else forward

    target = program.options.target
    visits = [visit(loop) for loop in program.loops]
    types = program.types.types
    names = [loop_name(types[loop.type_id], loop) for loop in program.loops]

    def part(first: int, last: int, carry: tuple[Array, _State]) -> Any:
        own = touched(program, (each.type_id for each in program.loops[first:last]))
        return carry[0], part_of(carry[1], own)

    def join(carry: tuple[Array, _State], part: tuple[Array, _State]) -> Any:
        return part[0], joined(carry[1], part[1])

    def step(trips: Array, carry: tuple[Array, _State]) -> tuple[Array, _State]:
        found: tuple[Array, _State] = run_loops(
            visits,
            trips,
            carry,
            ungrouped=target.ungrouped_loops,
            reverse=reverse,
            names=names,
            part=part,
            join=join,
        )
        return found

    return step


def run_loops(
    bodies: Sequence[Callable[[Any, Any], Any]],
    trips: Array,
    carry: Any,
    *,
    ungrouped: int,
    reverse: bool = False,
    names: Sequence[str] | None = None,
    part: Callable[[int, int, Any], Any] = lambda first, last, carry: carry,
    join: Callable[[Any, Any], Any] = lambda carry, part: part,
) -> Any:
    """Runs each loop for a given number of iterations, in order.

    Args:
        bodies: One body per loop.
        trips: Iterations of each; ``[P] int32``.
        carry: Initial carry.
        ungrouped: Up to this number of loops, none are enclosed in groups.
        reverse: Whether to run the loops from the last to the first.
        names: Names of the loops in the compiled program; None for no names.
        part: Returns the part of a carry that a range of loops changes, given the
            position of the first loop, the position after the last, and the carry.
        join: Puts a part back into the carry.

    Returns:
        The final carry.
    """

    def run(first: int, last: int, count: Array, body: Any, carry: Any) -> Any:
        changed = lax.fori_loop(0, count, body, part(first, last, carry))
        return join(carry, changed)

    def run_range(first: int, last: int, carry: Any) -> Any:
        order = range(first, last)
        for p in reversed(order) if reverse else order:
            with nullcontext() if names is None else jax.named_scope(names[p]):
                carry = run(p, p + 1, trips[p], bodies[p], carry)
        return carry

    if len(bodies) <= ungrouped:
        return run_range(0, len(bodies), carry)
    size = math.isqrt(len(bodies))
    starts = list(range(0, len(bodies), size))
    for first in reversed(starts) if reverse else starts:
        last = min(first + size, len(bodies))
        busy = (trips[first:last].max() > 0).astype(jnp.int32)
        carry = run(
            first,
            last,
            busy,
            lambda _, inner, a=first, b=last: run_range(a, b, inner),
            carry,
        )
    return carry
