"""Compilation: which program runs, when it is compiled, and how long that took.

With a coarse program, the first gradient of a tree-LSTM comes after 0.9 s; compiling
the fine one takes 10 s (`experiments/first_gradient.py`, docs/results.md).
"""

from edbatch.compilation.cache import (
    CacheContents,
    cache_contents,
    clear_compilation_cache,
    default_cache_folder,
    open_cache,
    use_compilation_cache,
)
from edbatch.compilation.jit import jit
from edbatch.compilation.record import Compilation
from edbatch.compilation.report import CompileReport, compile_report
from edbatch.compilation.settings import set_stance, use_tiers
from edbatch.compilation.tiered_function import TieredFunction
from edbatch.compilation.worker import Pending, wait_for_compilations

__all__ = [
    "CacheContents",
    "Compilation",
    "CompileReport",
    "Pending",
    "TieredFunction",
    "cache_contents",
    "clear_compilation_cache",
    "compile_report",
    "default_cache_folder",
    "jit",
    "open_cache",
    "set_stance",
    "use_compilation_cache",
    "use_tiers",
    "wait_for_compilations",
]
