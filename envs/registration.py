"""Registers the environments with gymnasium: edbatch/Batching-v0, edbatch/Serving-v0.

Gymnasium 1.4 loads no plug-ins by itself: import `edbatch` too, before or after it, or
write ``gymnasium.make("edbatch.envs:edbatch/Batching-v0")``.
"""

import gymnasium

ENV_ID = "edbatch/Batching-v0"
SERVING_ID = "edbatch/Serving-v0"


def register() -> None:
    """Registers the environments, unless they are registered already.

    Example:
        >>> register()
        >>> gymnasium.spec(ENV_ID).name
        'Batching'
    """
    if ENV_ID not in gymnasium.registry:
        gymnasium.register(
            id=ENV_ID, entry_point="edbatch.envs.batching_env:BatchingEnv"
        )
    if SERVING_ID not in gymnasium.registry:
        gymnasium.register(
            id=SERVING_ID, entry_point="edbatch.envs.serving_env:ServingEnv"
        )


register()
