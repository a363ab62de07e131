"""Reads the key of a program in JAX's persistent cache from JAX's stack frames.

The key is a hash of the program, the compiler options, the device and versions. JAX
does not expose it. If JAX's functions change, no key is found, and callers do without.
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
# JAX names a file after the module and the hash of the key. If JAX limits the size of
# the folder, a second file gives the time when the program was last used.
_PROGRAM = re.compile(rf".+-[0-9a-f]{{64}}{_SUFFIX}", re.DOTALL)
_LAST_USE = re.compile(r".+-[0-9a-f]{64}-atime", re.DOTALL)
KERNEL_CACHES_OPTION = "jax_persistent_cache_enable_xla_caches"
_PLUGINS = "jax_plugins"  # a namespace of modules, and a group of entry points

_CALLERS = 4  # frames searched for the key; a few more than needed


def cache_key_at(frame: FrameType | None) -> str | None:
    """Returns the key of the cache entry that JAX is handling.

    Args:
        frame: Frame to start at: the caller of an event listener or a warning filter.

    Returns:
        The key; None if none of the frames has one.
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
    """Returns whether a file of this name is a compiled program of JAX's cache."""
    return _PROGRAM.fullmatch(name) is not None


def is_last_use(name: str) -> bool:
    """Returns whether a file of this name says when JAX last used a program."""
    return _LAST_USE.fullmatch(name) is not None


def last_use_of(entry: Path) -> Path:
    """Returns the file that says when JAX last used a program; it need not exist."""
    return entry.with_name(f"{entry.name.removesuffix(_SUFFIX)}-atime")


def path_in_keys() -> str:
    """Returns the path of the cache if keys may depend on it.

    If XLA's kernel caches are on, keys of JAX 0.10 depend on the folder, so its
    programs are not found in any other folder.

    Returns:
        The path; empty if keys do not depend on it in any version of JAX.
    """
    folder = getattr(jax.config, FOLDER_OPTION) or ""
    caches = getattr(jax.config, KERNEL_CACHES_OPTION) or "none"
    return "" if caches == "none" else folder


def has_device_plugin() -> bool:
    """Returns whether JAX may find devices other than CPUs, without starting any."""
    if (spec := find_spec(_PLUGINS)) is not None:
        for _ in pkgutil.iter_modules(spec.submodule_search_locations):
            return True
    return bool(entry_points(group=_PLUGINS))
