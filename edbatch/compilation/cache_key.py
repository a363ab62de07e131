"""The key under which JAX keeps a compiled program, read from JAX's own frames.

JAX hands it to nobody. Where its functions change, there is none, and what asks for it
does without. It is a hash of the program, the options of the compiler, the device and
versions.
"""

import pkgutil
import re
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

import jax

from edbatch.stored_programs.folder import FOLDER_OPTION

_SUFFIX = "-cache"  # of the files of compiled programs
# JAX names a file by the module and the hash of the key; with a bound of its own for
# the folder, another beside it says when the program was last used.
_PROGRAM = re.compile(rf".+-[0-9a-f]{{64}}{_SUFFIX}", re.DOTALL)
_LAST_USE = re.compile(r".+-[0-9a-f]{64}-atime", re.DOTALL)
KERNEL_CACHES_OPTION = "jax_persistent_cache_enable_xla_caches"
_PLUGINS = "jax_plugins"  # a namespace of modules, and a group of entry points

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
    return Path(folder, key + _SUFFIX) if folder else None


def is_program(name: str) -> bool:
    """Tells whether a file of this name is a compiled program of JAX's cache."""
    return _PROGRAM.fullmatch(name) is not None


def is_last_use(name: str) -> bool:
    """Tells whether a file of this name says when JAX last used a program."""
    return _LAST_USE.fullmatch(name) is not None


def last_use_of(entry: Path) -> Path:
    """Returns the file that says when JAX last used a program; it need not exist."""
    return entry.with_name(f"{entry.name.removesuffix(_SUFFIX)}-atime")


def path_in_keys() -> str:
    """Returns what keys may hold of the path of the cache.

    With XLA's caches of kernels, keys of JAX 0.10 are of the folder in which they were
    made, and its programs are found in no other.

    Returns:
        The path; nothing where keys hold none of it in any version.
    """
    folder = getattr(jax.config, FOLDER_OPTION) or ""
    caches = getattr(jax.config, KERNEL_CACHES_OPTION) or "none"
    return "" if caches == "none" else folder


def has_device_plugin() -> bool:
    """Tells whether JAX may find devices other than CPUs, and starts none of them."""
    if (spec := find_spec(_PLUGINS)) is not None:
        for _ in pkgutil.iter_modules(spec.submodule_search_locations):
            return True
    return bool(entry_points(group=_PLUGINS))
