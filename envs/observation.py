"""Observations of an execution, shared by the environment and `AgentPolicy`."""

import numpy as np
from gymnasium import spaces

from edbatch.kernel import kernel
from edbatch.schedule.frontier import FrontierState, frontier_size, remaining_size
from edbatch.schedule.sufficient_condition import HeadState, ratio

# Nodes are counted with int32.
_HIGHEST = np.array([2.0**31, 2.0**31, 1], np.float32)


def observation_space(num_types: int) -> spaces.Box:
    """Returns the observation space.

    Returns:
        ``Box [T, 3] float32``.

    Example:
        >>> observation_space(4).shape
        (4, 3)
    """
    return spaces.Box(
        low=np.zeros((num_types, 3), np.float32),
        high=np.tile(_HIGHEST, (num_types, 1)),
    )


@kernel
def observe(state: FrontierState, heads: HeadState) -> np.ndarray:
    """Describes the frontier by type.

    Returns:
        ``[T, 3] float32``: per type the number of nodes on the frontier, the number of
        nodes that have not run, and the ratio of the sufficient condition.
    """
    observation = np.empty((len(state.head), 3), np.float32)
    for t in range(len(state.head)):
        observation[t, 0] = frontier_size(state, t)
        observation[t, 1] = remaining_size(state, t)
        observation[t, 2] = ratio(heads, state, t)
    return observation


def action_masks(state: FrontierState) -> np.ndarray:
    """Returns which types are on the frontier.

    Returns:
        ``[T] bool``.
    """
    return np.asarray(state.tail > state.head)
