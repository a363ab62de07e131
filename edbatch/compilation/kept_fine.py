"""Programs that an earlier process left in the cache.

A fine one that is read quickly needs no coarse one; for a large one, the coarse one
runs until the background thread has read it.

A note says which module a function's signature led to, which entry of JAX's cache
holds its program, and in which folder, if that matters. The module is compared by its
text, and the entry looked for, so a note that is out of date costs a trace of what
stands around the plan.

Reading takes about a CPU second for each MB of an entry, since XLA parses and copies
the description of all instructions (docs/results.md).
"""

import hashlib
from typing import Any

from edbatch.compilation.cache_key import entry_of, path_in_keys
from edbatch.compilation.tier import Tier
from edbatch.stored_programs.content import digest_of
from edbatch.stored_programs.folder import FOLDER
from edbatch.stored_programs.stored_program import NotStoredError

LARGE_BYTES = 2 * 2**20  # entries from here on are read in the background


def note_name(
    function: str, signature: dict[str, str], tier: Tier = "fine"
) -> str | None:
    """Names the note of a signature.

    Args:
        function: The name of the function.
        signature: The signature, described.
        tier: The tier of the program.

    Returns:
        A name that is the same in every process; None if no programs are kept.
    """
    if FOLDER.path is None:
        return None
    return f"{tier}-{digest_of((function, signature))}"


def write_note(name: str, lowered: Any, key: str) -> None:
    """Notes that the compiled program of a lowered one is in JAX's cache.

    Args:
        name: The note's name.
        lowered: The lowered program, as JAX returns it.
        key: The key in JAX's cache.
    """
    note = " ".join((_digest(lowered), key, path_in_keys())).encode()
    if FOLDER.read(name) != note:
        FOLDER.write(name, note)


def is_noted(name: str | None) -> bool:
    """Tells whether there is a note, of a program that JAX's cache still holds."""
    return name is not None and _read(name) is not None


def is_large(name: str | None) -> bool:
    """Tells whether a noted program takes long to read, by the size of its entry."""
    note = None if name is None else _read(name)
    entry = None if note is None else entry_of(note[1])
    try:
        return entry is not None and entry.stat().st_size >= LARGE_BYTES
    except OSError:  # another process removed it
        return False


def check_note(name: str, lowered: Any) -> None:
    """Checks that a lowered program is the one that a note is about.

    Raises:
        NotStoredError: It is another, or it is in the cache no more.
    """
    note = _read(name)
    if note is None or note[0] != _digest(lowered):
        raise NotStoredError


def _read(name: str) -> tuple[str, str] | None:
    """The digest of a module and the key of its program, if JAX's cache has that."""
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
