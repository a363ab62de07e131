"""Which sizes of the pools of external inputs the programs of waves are compiled for.

A pool with large rows has a few sizes, and a program is compiled for each combination
of them. Where nobody is to wait for a compiler, a wave takes a larger combination that
is compiled, whose padding is copied to the device in vain, until its own one is.
"""

from edbatch.compilation.settings import may_compile
from edbatch.compilation.tiered_function import TieredFunction
from edbatch.compilation.worker import Pending
from edbatch.executor.arenas import Arenas
from edbatch.waves.program_maker import PoolRows, ProgramMaker
from edbatch.waves.programs import WaveProgram
from edbatch.waves.wave import WaveShape

_Sizes = tuple[int, PoolRows]  # the chunks of a program that switches, or 0, and rows


class CompiledPools:
    """Knows the sizes of pools that the present program is compiled for.

    Args:
        maker: Makes the programs.
        run: The compiled function of waves.
    """

    def __init__(self, maker: ProgramMaker, run: TieredFunction) -> None:
        self._maker, self._run = maker, run
        self._program: WaveProgram | None = None
        self._compiled: set[_Sizes] = set()
        self._compiling: dict[_Sizes, Pending] = {}

    def choose(
        self, program: WaveProgram, shape: WaveShape, arenas: Arenas, rows: PoolRows
    ) -> PoolRows:
        """Chooses sizes that need no compiler now; the wanted ones where none do.

        Args:
            program: The program.
            shape: What it is compiled for in this wave.
            arenas: The arenas.
            rows: Rows of each pool that the wave should have.

        Returns:
            The rows that it gets, no fewer. If they are more, a program for the wanted
            ones is compiled in the background.
        """
        chunks = shape.program.chunks or 0
        if self._is_compiled(program, shape, arenas, (chunks, rows)):
            return rows
        larger = [
            own
            for each, own in self._compiled
            if each == chunks and all(a >= b for a, b in zip(own, rows, strict=True))
        ]
        if not larger:
            most = program.most_pool_rows
            if not self._is_compiled(program, shape, arenas, (chunks, most)):
                return rows
            larger = [most]
        if may_compile():
            self.compile(program, shape, arenas, rows)
        return min(larger, key=lambda own: self._maker.pool_bytes(program, own))

    def compile(
        self, program: WaveProgram, shape: WaveShape, arenas: Arenas, rows: PoolRows
    ) -> None:
        """Has a program for some sizes compiled in the background, once.

        Args:
            program: The program.
            shape: What it is compiled for.
            arenas: The arenas.
            rows: Rows of each pool.
        """
        sizes = shape.program.chunks or 0, rows
        if self._is_compiled(program, shape, arenas, sizes) or sizes in self._compiling:
            return
        arguments = self._maker.arguments(program, shape, arenas, rows)
        self._compiling[sizes] = self._run.warm_up_in_background(*arguments)

    def _is_compiled(
        self, program: WaveProgram, shape: WaveShape, arenas: Arenas, sizes: _Sizes
    ) -> bool:
        if self._program is not program:
            self._program, self._compiled, self._compiling = program, set(), {}
        if sizes in self._compiled:
            return True
        pending = self._compiling.get(sizes)
        if pending is not None and not pending.done:
            return False
        arguments = self._maker.arguments(program, shape, arenas, sizes[1])
        missing = self._run.missing(*arguments)
        if missing is not None and missing.coarse is None:
            return False
        self._compiled.add(sizes)
        return True
