"""Values on the way: models that look at what they computed, run in waves."""

from edbatch.waves.rollout import Rollout
from edbatch.waves.wave_report import WaveReport

__all__ = ["Rollout", "WaveReport"]
