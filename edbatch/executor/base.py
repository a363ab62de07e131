"""The protocol of executors: arenas in, arenas out.

An executor runs a stream on arenas that the caller passes in and gets back. A function
that is compiled with the arenas donated updates them in place, so a minibatch may run
as several streams, one after the other, on arenas that stay on the device:

    run = jax.jit(executor.run, static_argnums=0, donate_argnums=2)
    arenas = new_arenas(program)
    for stream in streams:
        arenas = run(program, prepared, arenas, pools, stream)

The streams may belong to other programs (buckets) of the same types. Arenas may have
more rows than the program needs, and there may be more arenas than it uses.
"""

from typing import Protocol

from edbatch.cell.program import Packed
from edbatch.executor.arenas import Arenas
from edbatch.executor.program import ProgramShape
from edbatch.stream.stream import Stream

Prepared = dict[int, Packed]  # type id -> packed parameters of its cell


class Executor(Protocol):
    """A way to run streams."""

    def run(
        self,
        program: ProgramShape,
        prepared: Prepared,
        arenas: Arenas,
        pools: Arenas,
        stream: Stream,
    ) -> Arenas:
        """Runs a stream.

        Args:
            program: The program.
            prepared: The packed parameters, from `ProgramShape.pack`.
            arenas: Values by array kind, ``[rows, ...]``; row 0 is zero. They hold
                everything that the stream reads and does not write itself.
            pools: External inputs by array kind, ``[rows, ...]``; row 0 is zero.
            stream: The stream.

        Returns:
            The arenas, with the values that the stream computes. Rows that no node
            wrote hold arbitrary values.
        """
