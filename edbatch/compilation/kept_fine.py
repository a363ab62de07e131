"""Finds programs that an earlier process left in the cache, by notes about them.

A fine program that can be read quickly needs no coarse one. While the background thread
reads a large fine program, the coarse one runs.

For a function and a signature, a note gives the hash of the StableHLO module, the key
of its program in JAX's cache, and the cache folder if keys depend on it. The hash is
compared with that of the new module, and the entry must exist, so an outdated note
costs no more than a trace of the code around the plan.

Reading takes about a CPU second for each MB of an entry, because XLA parses and copies
the description of all instructions (docs/results.md).
"""

import hashlib
from typing import Any

from edbatch.compilation.cache_key import entry_of, path_in_keys
from edbatch.compilation.tier import Tier
from edbatch.stored_programs.content import digest_of
from edbatch.stored_programs.folder import FOLDER
from edbatch.stored_programs.stored_program import NotStoredError

LARGE_BYTES = 2 * 2**20  # entries of at least this size are read in the background


def note_name(
    function: str, signature: dict[str, str], tier: Tier = "fine"
) -> str | None:
    """Names the note of a signature.

    Args:
        function: The name of the function.
        signature: The signature as text, from `signature.describe`.
        tier: The tier of the program.

    Returns:
        A name that is the same in every process; None if programs are not kept.
    """
    if FOLDER.path is None:
        return None
    return f"{tier}-{digest_of((function, signature))}"


def write_note(name: str, lowered: Any, key: str) -> None:
    """Writes a note that the compiled form of a lowered program is in JAX's cache.

    Args:
        name: The note's name.
        lowered: The lowered program, as JAX returns it.
        key: Key of the compiled program in JAX's cache.
    """
    note = " ".join((_digest(lowered), key, path_in_keys())).encode()
    if FOLDER.read(name) != note:
        FOLDER.write(name, note)


def is_noted(name: str | None) -> bool:
    """Returns whether there is a note of a program that is still in JAX's cache."""
    return name is not None and _read(name) is not None


def is_large(name: str | None) -> bool:
    """Returns whether a noted program takes long to read, by the size of its entry."""
    note = None if name is None else _read(name)
    entry = None if note is None else entry_of(note[1])
    try:
        return entry is not None and entry.stat().st_size >= LARGE_BYTES
    except OSError:  # another process removed it
        return False


def check_note(name: str, lowered: Any) -> None:
    """Checks that a note is about a lowered program.

    Args:
        name: The note's name.
        lowered: The lowered program, as JAX returns it.

    Raises:
        NotStoredError: The note is about another program, or is gone, or its program is
            no longer cached.
    """
    note = _read(name)
    if note is None or note[0] != _digest(lowered):
        raise NotStoredError


def _read(name: str) -> tuple[str, str] | None:
    """Returns a note's module digest and cache key, if JAX's cache has the entry."""
    content = FOLDER.read(name)
    if content is None:
        return None
    parts = content.decode(errors="replace").split(" ", 2)
    if len(parts) < 3 or parts[2] != path_in_keys():
        return None
    digest, key, _ = parts
    entry = entry_of(key)
    return (digest, key) if entry is not None and entry.exists() else None


def _digest(lowered: Any) -> str:
    return hashlib.sha256(lowered.as_text().encode()).hexdigest()
