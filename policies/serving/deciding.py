"""Decisions of serving policies in Python, by the compiled choice of simulations."""

import numpy as np

from edbatch.errors import PolicyError
from edbatch.policies.serving.choices import GREEDY, choose
from edbatch.schedule.serving.kernels import View
from edbatch.schedule.serving.policy import ServingState

UNLIMITED = 2**31 - 1  # rows, or batches in a wave

# Kind, weights, scale in ms and batches in a wave, as `choose` takes them.
Choice = tuple[int, np.ndarray, float, int]


def decide_by(choice: Choice, state: ServingState) -> int:
    """Decides from a server's state by a compiled choice.

    Raises:
        PolicyError: The policy is greedy, and the state has no counts of heads.
    """
    kind, weights, scale_ms, wave = choice
    heads = state.heads
    if heads is None:
        if kind == GREEDY:
            raise PolicyError(
                "the serving policy 'greedy' needs the heads of each type but"
                " state.heads is None; count them, or use another policy"
            )
        heads = np.zeros(state.num_types, np.int32)
    view = View(
        np.asarray(state.waiting, np.int32),
        np.asarray(state.remaining, np.int32),
        np.asarray(state.oldest_ms, np.float64),
        np.asarray(state.waited_ms, np.float64),
        np.asarray(state.slack_ms, np.float64),
        np.asarray(heads, np.int32),
    )
    return int(
        choose(kind, weights, scale_ms, wave, view, state.in_flight, state.batches)
    )


def check_types(name: str, ours: int, state: ServingState) -> None:
    """Checks that a policy and a state have the same number of types.

    Raises:
        PolicyError: The numbers differ.
    """
    if ours != state.num_types:
        raise PolicyError(
            f"a serving policy decides among the types that it is for, but {name!r} is"
            f" for {ours} and the state has {state.num_types}; use"
            " policy.for_types(type_keys)"
        )
