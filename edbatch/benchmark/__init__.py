"""The benchmark behind ``edbatch bench``: edbatch beside other ways to batch."""

from edbatch.benchmark.config import SYSTEMS, BenchmarkConfig
from edbatch.benchmark.errors import BenchmarkError, UnsupportedError
from edbatch.benchmark.result import BenchmarkResult, MinibatchFacts, Row
from edbatch.benchmark.run import run_benchmark

__all__ = [
    "SYSTEMS",
    "BenchmarkConfig",
    "BenchmarkError",
    "BenchmarkResult",
    "MinibatchFacts",
    "Row",
    "UnsupportedError",
    "run_benchmark",
]
