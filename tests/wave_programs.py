"""Counts the programs of waves that were compiled."""

import edbatch as eb


def wave_programs() -> tuple[int, int]:
    """Returns how many there are so far, and how many of them somebody waited for."""
    found = [each for each in eb.compile_report() if each.function.endswith("(waves)")]
    return len(found), sum(not each.background for each in found)
