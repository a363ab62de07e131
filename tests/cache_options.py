"""Restores options of the persistent cache and warning filters after a block."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import jax
from jax.experimental.compilation_cache import compilation_cache

OPTIONS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)


@contextmanager
def own_cache_options() -> Iterator[None]:
    """Lets a block open another cache, and restores the options afterwards."""
    before = {name: getattr(jax.config, name) for name in OPTIONS}
    filters = list(warnings.filters)
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        warnings.filters[:] = filters
        compilation_cache.reset_cache()
