"""The key under which JAX keeps a compiled program, read from JAX's own frames.

JAX hands it to nobody. Where its functions change, there is none, and what asks for it
does without. It is a hash of the program, the options of the compiler, the device and
versions.
"""

import pkgutil
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

import jax

from edbatch.stored_programs.folder import FOLDER_OPTION

ENTRY = "*-cache"  # files of compiled programs
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
    return None if folder is None else Path(folder, ENTRY.replace("*", key))


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
