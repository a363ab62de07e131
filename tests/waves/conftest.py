import pytest

import edbatch as eb
from edbatch.stream import wave_sizes


@pytest.fixture
def small_arenas(monkeypatch):
    """Arenas start with 16 rows, so that rows have to be reused."""
    eb.use_tiers("coarse")
    smallest = dict(wave_sizes._SMALLEST, arena=16)
    monkeypatch.setattr(wave_sizes, "_SMALLEST", smallest)
    yield
    eb.use_tiers("fine")
