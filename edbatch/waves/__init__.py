"""Values on the way: models that look at what they computed, run in waves.

A parser that follows its own transitions takes 126 ms for 64 sentences at hidden 128,
1,053 ms one sentence at a time and 2,612 ms where each question runs all cells before
it again (`experiments/decode_parser.py`, docs/results.md).
"""

from edbatch.waves.rollout import Rollout
from edbatch.waves.wave_report import WaveReport

__all__ = ["Rollout", "WaveReport"]
