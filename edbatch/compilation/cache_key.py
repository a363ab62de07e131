"""The key under which JAX keeps a compiled program, read from JAX's own frames.

JAX hands it to nobody. Where its functions change, there is none, and what asks for it
does without.
"""

from pathlib import Path
from types import FrameType

import jax

from edbatch.stored_programs.folder import FOLDER_OPTION

ENTRY = "*-cache"  # files of compiled programs

_CALLERS = 4  # between whom JAX tells of an entry and whoever tells, and some more


def cache_key_at(frame: FrameType | None) -> str | None:
    """Returns the key of the entry that a caller is about.

    Args:
        frame: The frame of whom JAX tells: a listener, a filter of warnings.

    Returns:
        The key; None if no caller has one.
    """
    for _ in range(_CALLERS):
        if frame is None:
            return None
        if isinstance(key := frame.f_locals.get("cache_key"), str):
            return key
        frame = frame.f_back
    return None


def entry_of(key: str) -> Path | None:
    """Returns the file of a compiled program; None if there is no cache."""
    folder = getattr(jax.config, FOLDER_OPTION)
    return None if folder is None else Path(folder, ENTRY.replace("*", key))
