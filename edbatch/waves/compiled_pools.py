"""Chooses pool sizes for which a wave program is already compiled.

A pool with large rows may have one of a few sizes, and a program is compiled for each
combination of sizes. Where no call should wait for a compilation, a wave uses a larger
combination that is compiled already, at the cost of copying padding to the device,
until the program for its own combination is compiled.
"""

from edbatch.compilation.settings import may_compile
from edbatch.compilation.tiered_function import TieredFunction
from edbatch.compilation.worker import Pending
from edbatch.executor.arenas import Arenas
from edbatch.waves.program_maker import PoolRows, ProgramMaker
from edbatch.waves.programs import WaveProgram
from edbatch.waves.wave import WaveShape

_Sizes = tuple[int, PoolRows]  # chunks of a program with a switch, or 0; pool rows


class CompiledPools:
    """Keeps track of the pool sizes for which the current program is compiled.

    Args:
        maker: Makes the programs.
        run: The compiled function that runs waves.
    """

    def __init__(self, maker: ProgramMaker, run: TieredFunction) -> None:
        self._maker, self._run = maker, run
        self._program: WaveProgram | None = None
        self._compiled: set[_Sizes] = set()
        self._compiling: dict[_Sizes, Pending] = {}

    def choose(
        self, program: WaveProgram, shape: WaveShape, arenas: Arenas, rows: PoolRows
    ) -> PoolRows:
        """Chooses compiled pool sizes for a wave; the wanted ones if none are compiled.

        Args:
            program: The program.
            shape: Static shape of the program in this wave.
            arenas: The arenas.
            rows: Wanted rows of each pool.

        Returns:
            Rows of each pool, at least the wanted ones. If they are more, a program for
            the wanted ones is compiled in the background, if the stance allows it.
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
        """Starts compiling a program for some pool sizes in the background, once.

        Args:
            program: The program.
            shape: Static shape of the program.
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
