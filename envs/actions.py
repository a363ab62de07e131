"""Checks shared by the environments: started episodes, actions, invalid actions."""

from typing import SupportsInt, TypeVar

import gymnasium
import numpy as np

from edbatch.errors import shown

Started = TypeVar("Started")


def started(episode: Started | None) -> Started:
    """Returns an episode, or raises an error before the first one.

    Args:
        episode: The episode; None before the first one.

    Returns:
        The episode.

    Raises:
        gymnasium.error.ResetNeeded: `episode` is None.

    Example:
        >>> started("an episode")
        'an episode'
    """
    if episode is None:
        raise gymnasium.error.ResetNeeded(
            "an episode starts with reset() but there was none; call it first"
        )
    return episode


def read_action(action: SupportsInt, count: int, kind: str) -> int:
    """Returns an action as an integer.

    Args:
        action: The argument of ``step``: an integer, or an array of one integer.
        count: The number of actions.
        kind: Description of an action, for the error message.

    Returns:
        The integer, from 0 to ``count - 1``.

    Raises:
        ValueError: The action is not in the action space.

    Example:
        >>> import numpy as np
        >>> read_action(np.array([2]), 3, "a type")
        2
    """
    try:
        number = np.asarray(action).item()
        chosen = int(number) if int(number) == number else -1
    except (TypeError, ValueError, OverflowError):
        chosen = -1
    if not 0 <= chosen < count:
        raise ValueError(
            f"an action is {kind} from 0 to {count - 1} but is {shown(action)}; choose"
            " one where info['action_mask'] is 1"
        )
    return chosen


def gives_up(limit: int | None, invalid: int) -> bool:
    """Returns whether invalid actions end an episode.

    Args:
        limit: Number of invalid actions in a row that ends it; None for no limit.
        invalid: Number of invalid actions in a row so far.

    Returns:
        Whether to end the episode.

    Example:
        >>> gives_up(3, 2), gives_up(3, 3), gives_up(0, 0)
        (False, True, False)
    """
    return limit is not None and invalid > 0 and invalid >= limit
