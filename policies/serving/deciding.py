"""A compiled choice, which simulations and servers share."""

import numpy as np

from edbatch.errors import PolicyError
from edbatch.policies.serving.choices import GREEDY, choose
from edbatch.schedule.serving.kernels import View
from edbatch.schedule.serving.policy import ServingState

UNLIMITED = 2**31 - 1  # rows, or batches in a wave

# Kind, weights, scale in ms and batches in a wave, as `choose` takes them.
Choice = tuple[int, np.ndarray, float, int]


def decide_by(choice: Choice, name: str, state: ServingState) -> int:
    """Asks a compiled choice about a server's state.

    Raises:
        PolicyError: Greedy is asked and nobody has counted heads, or the policy is for
            another number of types.
    """
    kind, weights, scale_ms, wave = choice
    heads = state.heads
    if heads is None:
        if kind == GREEDY:
            raise PolicyError(
                "the serving policy 'greedy' goes by the heads of each type but"
                " state.heads is None; count them, or take another policy"
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
    """Checks that a policy was made for as many types as a state has.

    Raises:
        PolicyError: It was not.
    """
    if ours != state.num_types:
        raise PolicyError(
            f"a serving policy decides among the types that it is for but {name!r} is"
            f" for {ours} and the state has {state.num_types}; call"
            " policy.for_types(type_keys) and ask what it returns"
        )
