"""Turns an agent trained in `BatchingEnv` into a scheduling policy.

An agent is any object with the method `predict` of stable-baselines3, with masks: a
MaskablePPO of sb3-contrib, or a wrapper around a model of another library.
"""

import inspect
import operator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from edbatch.arguments import check_type, list_of
from edbatch.envs.observation import action_masks, observation_space, observe
from edbatch.errors import PolicyError
from edbatch.graph.node_type import TypeKey
from edbatch.graph.structure import GraphStructure
from edbatch.schedule.frontier import collect, frontier_size, new_frontier, run_type
from edbatch.schedule.policy import schedules_are_valid
from edbatch.schedule.schedule import Schedule
from edbatch.schedule.sufficient_condition import start_heads, update_heads

_NO_TYPE = -1


class Agent(Protocol):
    """An agent that chooses actions in `BatchingEnv`.

    Example:
        >>> import numpy as np
        >>> class First:
        ...     def predict(self, observation, action_masks=None, **options):
        ...         return np.argmax(action_masks), None
        >>> agent: Agent = First()
        >>> agent.predict(None, action_masks=np.array([False, True]))[0].item()
        1
    """

    def predict(
        self, observation: np.ndarray, *, action_masks: np.ndarray, deterministic: bool
    ) -> tuple[Any, Any]:
        """Chooses the type to run next.

        Args:
            observation: ``[T, 3] float32``, as in `BatchingEnv`.
            action_masks: ``[T] bool``, True where a type is on the frontier.
            deterministic: Whether to take the best action; True when scheduling.

        Returns:
            The type, and an unused state.
        """


@schedules_are_valid
@dataclass(frozen=True, eq=False)
class AgentPolicy:
    """A policy that calls an agent's `predict` once per batch.

    The agent sees the types in the order of its environment, whatever their order in
    the graph; types that the graph lacks have no nodes.

    Attributes:
        agent: An object with the method `predict` of `Agent`.
        type_keys: The types of the environment in which the agent was trained,
            ``env.unwrapped.type_keys``.
        name: Short name for tables.

    Raises:
        PolicyError: The agent's `predict` takes no masks, the agent was trained for
            another number of types, or `type_keys` is not a list of types.

    Example:
        >>> class Largest:
        ...     def predict(self, observation, *, action_masks, deterministic):
        ...         return observation[:, 0].argmax(), None
        >>> from edbatch.schedule.examples import tree
        >>> graph = tree("((ab)cb)c")
        >>> AgentPolicy(Largest(), graph.type_keys).schedule(graph).num_batches
        4
    """

    agent: Agent
    type_keys: tuple[TypeKey, ...]
    name: str = "agent"

    def __post_init__(self) -> None:
        keys = list_of(PolicyError, "type_keys of an AgentPolicy", self.type_keys)
        for each in keys:
            what = "a TypeKey, as in env.unwrapped.type_keys"
            check_type(PolicyError, "each type of an AgentPolicy", each, TypeKey, what)
        object.__setattr__(self, "type_keys", tuple(keys))
        _check_agent(self.agent, len(self.type_keys))

    def __repr__(self) -> str:
        """Summary in one line."""
        return f"<AgentPolicy {self.name!r} for {len(self.type_keys)} types>"

    def schedule(self, structure: GraphStructure) -> Schedule:
        """Schedules a graph by calling the agent once per batch.

        Args:
            structure: The graph; its types may be in another order than `type_keys`.

        Returns:
            The schedule.

        Raises:
            PolicyError: The graph has nodes of a type that the environment did not
                have, or the agent did not choose a type on the frontier.
        """
        type_of = self._bind(structure)
        state = new_frontier(
            type_of[structure.node_type], *structure.consumers, len(self.type_keys)
        )
        heads = start_heads(state)
        batches = np.empty((structure.num_nodes, 3), np.int32)
        done = num_batches = 0
        while done < structure.num_nodes:
            chosen = self._ask(observe(state, heads), action_masks(state))
            if not 0 <= chosen < len(self.type_keys) or not frontier_size(
                state, chosen
            ):
                raise self._illegal(chosen, np.flatnonzero(action_masks(state)))
            first, last = run_type(state, chosen)
            update_heads(heads, state, chosen, first, last)
            batches[num_batches] = chosen, first, last
            num_batches += 1
            done += last - first
        order, start, kind = collect(state, batches, num_batches)
        graph_type = np.full(len(self.type_keys), _NO_TYPE, np.int32)
        known = np.flatnonzero(type_of != _NO_TYPE)
        graph_type[type_of[known]] = known
        return Schedule(order, start, graph_type[kind], self.name)

    def _bind(self, structure: GraphStructure) -> np.ndarray:
        """Returns the environment's type for each of the graph's; ``[T] int32``."""
        place = {key: t for t, key in enumerate(self.type_keys)}
        keys = structure.type_keys
        type_of = np.array([place.get(key, _NO_TYPE) for key in keys], np.int32)
        nodes = np.bincount(structure.node_type, minlength=structure.num_types)
        strange = np.flatnonzero((type_of == _NO_TYPE) & (nodes > 0))
        if len(strange):
            raise PolicyError(
                "an agent schedules graphs of the types that its environment had, for"
                f" {self.name!r} {', '.join(map(str, self.type_keys))}, but this graph"
                f" has nodes of {', '.join(str(keys[t]) for t in strange)}; train an"
                " agent in an environment with the type_keys of this graph, or use a"
                " heuristic such as 'greedy'"
            )
        return type_of

    def _ask(self, observation: np.ndarray, masks: np.ndarray) -> int:
        answer = self.agent.predict(observation, action_masks=masks, deterministic=True)
        try:
            action, _ = answer
            return operator.index(action)
        except (TypeError, ValueError):
            raise PolicyError(
                "an agent's predict returns the pair (type, state), the type a whole"
                f" number, but that of {self.name!r} returned {answer!r}; return"
                " (type, None)"
            ) from None

    def _illegal(self, chosen: int, legal: np.ndarray) -> PolicyError:
        return PolicyError(
            "an agent chooses a type where action_masks is True, here"
            f" {legal.tolist()}, but {self.name!r} chose {chosen}; an agent that"
            " ignores the masks does so, use one that was trained with them, such as"
            " sb3-contrib's MaskablePPO"
        )


def _check_agent(agent: object, num_types: int) -> None:
    predict = getattr(agent, "predict", None)
    wanted = "predict(observation, action_masks=..., deterministic=True)"
    if not callable(predict):
        raise PolicyError(
            f"an agent is an object with a method {wanted} but this is {agent!r}; pass"
            " the trained agent itself"
        )
    signature = inspect.signature(predict)
    try:
        signature.bind(None, action_masks=None, deterministic=True)
    except TypeError:
        raise PolicyError(
            f"an agent must have {wanted} but that of {type(agent).__name__} is"
            f" predict{signature}, as in agents without masks; train one with masks, or"
            " pass an object with such a method"
        ) from None
    # Agents of stable-baselines3 have an observation space; others may not.
    taken = getattr(getattr(agent, "observation_space", None), "shape", None)
    shown = observation_space(num_types).shape
    if taken not in (None, shown):
        raise PolicyError(
            f"observations have shape {shown} for {num_types} types but this agent"
            f" takes {taken}, as after training with other types or behind a wrapper;"
            " pass the type_keys of its environment, or an object whose predict wraps"
            " observations in the same way"
        )
