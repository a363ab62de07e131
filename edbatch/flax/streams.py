"""Keys for a module's streams of random numbers."""

from collections.abc import Sequence

import jax
from jax import Array


def stream_keys(rng: Array, streams: Sequence[str]) -> dict[str, Array]:
    """Derives a key for each stream from the key of a call.

    Args:
        rng: The key of the call.
        streams: Names of streams; the first one gets the key itself.

    Returns:
        The keys by stream.

    Example:
        >>> key = jax.random.key(0)
        >>> stream_keys(key, ["dropout"])["dropout"] is key
        True
    """
    return {
        stream: jax.random.fold_in(rng, k) if k else rng
        for k, stream in enumerate(streams)
    }
