"""Counts compiled programs of waves."""

import edbatch as eb


def wave_programs() -> tuple[int, int]:
    """Returns the number compiled so far, and how many of them a caller waited for."""
    found = [each for each in eb.compile_report() if each.function.endswith("(waves)")]
    return len(found), sum(not each.background for each in found)
