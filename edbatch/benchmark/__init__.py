"""Measurements behind ``edbatch bench`` and ``edbatch calibrate``."""

from edbatch.benchmark.calibration import Calibration, Prediction, calibrate
from edbatch.benchmark.config import PLANNERS, SYSTEMS, BenchmarkConfig
from edbatch.benchmark.minibatches import MeasuredModel
from edbatch.benchmark.procedure import run_benchmark
from edbatch.benchmark.result import BenchmarkResult, MinibatchFacts, Row
from edbatch.errors import BenchmarkError, UnsupportedError

__all__ = [
    "PLANNERS",
    "SYSTEMS",
    "BenchmarkConfig",
    "BenchmarkError",
    "BenchmarkResult",
    "Calibration",
    "MeasuredModel",
    "MinibatchFacts",
    "Prediction",
    "Row",
    "UnsupportedError",
    "calibrate",
    "run_benchmark",
]
