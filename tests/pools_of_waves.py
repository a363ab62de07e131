"""Records the number of pool rows of each wave."""

import pytest

from edbatch.waves import wave_execution


def note_pool_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list to which each wave appends the number of rows of its pools."""
    rows: list[int] = []
    pad_pools = wave_execution.pad_pools

    def noting(state, program, count, raw):
        rows.extend(count)
        return pad_pools(state, program, count, raw)

    monkeypatch.setattr(wave_execution, "pad_pools", noting)
    return rows
