"""JAX's persistent compilation cache, for programs of a few milliseconds as well."""

from pathlib import Path

import jax

from edbatch.arguments import as_path
from edbatch.errors import EdbatchError


def use_compilation_cache(folder: str | Path) -> Path:
    """Keeps compiled programs in a folder, for later runs.

    It sets two options of JAX for the whole process, so it also holds for functions
    that are not edbatch's: ``jax_compilation_cache_dir``, and no program is too quick
    to compile to be kept.

    Args:
        folder: The folder; JAX makes it.

    Returns:
        Its path.

    Raises:
        EdbatchError: It is no path.

    Example:
        >>> import edbatch as eb
        >>> eb.use_compilation_cache(3)
        Traceback (most recent call last):
        edbatch.errors.EdbatchError: the folder of compiled programs is the path of ...
    """
    path = as_path(EdbatchError, "the folder of compiled programs", folder)
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    return path
