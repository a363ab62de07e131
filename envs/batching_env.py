"""Gymnasium environment for scheduling sampled graphs.

The transitions and rewards are those that `edbatch.policies.train_policy` learns from.
The environment is for other learners; `AgentPolicy` turns a trained agent into a
policy.
"""

from collections.abc import Mapping
from typing import Any, SupportsInt

import gymnasium
import numpy as np
from gymnasium import spaces

from edbatch.arguments import check_number, check_type, list_of
from edbatch.envs.actions import gives_up, read_action, started
from edbatch.envs.observation import action_masks, observation_space, observe
from edbatch.envs.samplers import Sampler, sample_tree_structure
from edbatch.errors import PlanError, nearest, shown
from edbatch.graph.node_type import TypeKey
from edbatch.graph.structure import GraphStructure
from edbatch.schedule.frontier import FrontierState, run_type, start_frontier
from edbatch.schedule.interrupt import keyboard_interrupts
from edbatch.schedule.lower_bound import lower_bound
from edbatch.schedule.sufficient_condition import (
    HeadState,
    ratio,
    start_heads,
    update_heads,
)

INVALID_ACTION_REWARD = -2.0  # less than the reward of any type on the frontier


class BatchingEnv(gymnasium.Env[np.ndarray, SupportsInt]):
    """Choose which type runs next until every node of a graph has run.

    Action: ``Discrete(T)``, the type whose frontier nodes run as one batch.

    Observation: ``Box [T, 3] float32``, per type the number of nodes on the frontier,
    the number of nodes that have not run, and the ratio of the sufficient condition: at
    1, some optimal schedule runs this type next.

    Reward: −1 + `alpha` · (the ratio of the chosen type). Choosing a type without nodes
    on the frontier gives `INVALID_ACTION_REWARD` and changes nothing.

    Episode: terminated when every node has run. Truncated only after
    `max_invalid_actions` invalid actions in a row, which no masked learner makes.

    Info: ``action_mask`` (``[T] int8``, 1 where a type is on the frontier),
    ``batches`` (how many ran), ``lower_bound`` (no schedule has fewer).

    ``reset(options={"graph": structure})`` uses the given graph instead of a sample.

    Args:
        sampler: Draws the graph of each episode from a random generator; small random
            trees if None.
        type_keys: The types of every episode's graph; those of a first sample if None.
        alpha: Weight of the ratio in the reward, 0 or more.
        max_invalid_actions: See above; None for no limit.
        render_mode: `"ansi"` or None.

    Raises:
        PlanError: An argument has the wrong type or is out of range.
        ValueError: The render mode is unknown.

    Example:
        >>> env = gymnasium.make("edbatch/Batching-v0")
        >>> observation, info = env.reset(seed=0)
        >>> done = False
        >>> while not done:
        ...     action = env.action_space.sample(info["action_mask"])
        ...     observation, reward, done, truncated, info = env.step(action)
        >>> info["batches"] >= info["lower_bound"]
        True
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012

    def __init__(
        self,
        sampler: Sampler | None = None,
        *,
        type_keys: tuple[TypeKey, ...] | None = None,
        alpha: float = 0.5,
        max_invalid_actions: int | None = 1000,
        render_mode: str | None = None,
    ) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(
                f"render_mode is 'ansi' or None but is {shown(render_mode)}; use 'ansi'"
            )
        check_number(PlanError, "alpha of an environment", alpha, 0)
        if max_invalid_actions is not None:
            limit = "max_invalid_actions of an environment"
            check_number(PlanError, limit, max_invalid_actions, 0, whole=True)
        if sampler is not None and not callable(sampler):
            raise PlanError(
                "a sampler of an environment is a function of a random generator but"
                f" this is {shown(sampler)}; pass the function itself, or leave it out"
            )
        self._sampler = sample_tree_structure if sampler is None else sampler
        if type_keys is None:
            type_keys = self._sample(np.random.default_rng(0)).type_keys
        self.type_keys = tuple(
            list_of(PlanError, "type_keys of an environment", type_keys, "a TypeKey")
        )
        for each in self.type_keys:
            check_type(
                PlanError, "a type of an environment", each, TypeKey, "a TypeKey"
            )
        if not self.type_keys:
            raise PlanError(
                "an environment has one type or more but type_keys is empty; leave it"
                " out for those of a first sample"
            )
        self.alpha = alpha
        self.max_invalid_actions = max_invalid_actions
        self.render_mode = render_mode
        self.action_space = spaces.Discrete(len(self.type_keys))
        self.observation_space = observation_space(len(self.type_keys))
        self._structure: GraphStructure | None = None

    def __repr__(self) -> str:
        """Summary in one line."""
        return f"<BatchingEnv of {len(self.type_keys)} types>"

    @keyboard_interrupts()
    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts the execution of a graph.

        Args:
            seed: Seed that makes this and the following episodes reproducible.
            options: ``{"graph": structure}``, or nothing to sample a graph.

        Returns:
            Observation and info.

        Raises:
            PlanError: There is another option, `graph` is not a graph structure, or its
                types are not those of the environment.
        """
        given = self._given_graph(options)
        super().reset(seed=seed)
        graph = self._sample(self.np_random) if given is None else given
        self._check_types(graph)
        self._structure = graph
        self._state: FrontierState = start_frontier(graph)
        self._heads: HeadState = start_heads(self._state)
        self._done = 0
        self._batches = 0
        self._invalid_in_a_row = 0
        self._bound = lower_bound(graph)
        self._last = "nothing has run"
        return self._observation(), self._info()

    def _given_graph(self, options: object) -> GraphStructure | None:
        if options is None:
            return None
        what = "a dict such as {'graph': structure}"
        check_type(PlanError, "options of reset", options, Mapping, what)
        assert isinstance(options, Mapping), "checked in the line above"
        for name in options:
            if name != "graph":
                raise PlanError(
                    f"reset takes the option 'graph' and no other but this is"
                    f" {shown(name)}; {nearest(str(name), ['graph'])}"
                )
        graph = options.get("graph")
        if graph is None:
            return None
        return self._checked(graph, "the option 'graph' of reset")

    def _sample(self, rng: np.random.Generator) -> GraphStructure:
        return self._checked(self._sampler(rng), "what a sampler returns")

    def _checked(self, graph: object, name: str) -> GraphStructure:
        what = "the structure of a graph, as batched.graph(instances).structure"
        check_type(PlanError, name, graph, GraphStructure, what)
        assert isinstance(graph, GraphStructure), "checked in the line above"
        return graph

    def step(
        self, action: SupportsInt
    ) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Runs the frontier nodes of a type as one batch.

        Args:
            action: The type.

        Returns:
            Observation, reward, whether all nodes have run, whether the episode is
            truncated, and info. After the end nothing changes and the reward is 0.

        Raises:
            ValueError: The action is not in the action space.
            gymnasium.error.ResetNeeded: No episode has been started.
        """
        graph = self._started()
        chosen = read_action(action, len(self.type_keys), "a type")
        if self._done == graph.num_nodes:
            return self._observation(), 0.0, True, False, self._info()
        key = self.type_keys[chosen]
        if self._state.tail[chosen] == self._state.head[chosen]:
            reward = INVALID_ACTION_REWARD
            self._invalid_in_a_row += 1
            self._last = f"{key} is not on the frontier; nothing ran"
        else:
            reward = float(self.alpha * ratio(self._heads, self._state, chosen) - 1.0)
            first, last = run_type(self._state, chosen)
            update_heads(self._heads, self._state, chosen, first, last)
            self._invalid_in_a_row = 0
            self._batches += 1
            self._done += last - first
            self._last = f"batch {self._batches}: {last - first} of {key}"
        terminated = bool(self._done == graph.num_nodes)
        truncated = gives_up(self.max_invalid_actions, self._invalid_in_a_row)
        return self._observation(), reward, terminated, truncated, self._info()

    def action_masks(self) -> np.ndarray:
        """Returns which types are on the frontier; called by sb3-contrib's MaskablePPO.

        Returns:
            ``[T] bool``.
        """
        self._started()
        return action_masks(self._state)

    def render(self) -> str | None:
        """Draws the execution as text.

        Returns:
            The last batch, and the frontier and remaining nodes of each type; None if
            the render mode is None.
        """
        if self.render_mode is None:
            return None
        graph = self._started()
        names = [str(key) for key in self.type_keys]
        width = max(map(len, ["type", *names]))
        lines = [
            f"{self._last}; {self._done} of {graph.num_nodes} nodes, lower bound"
            f" {self._bound} batches",
            f"{'type':{width}}  frontier  remaining  ratio",
        ]
        for name, (ready, left, share) in zip(names, self._observation(), strict=True):
            lines.append(f"{name:{width}}  {ready:8.0f}  {left:9.0f}  {share:5.2f}")
        return "\n".join(lines)

    def _started(self) -> GraphStructure:
        return started(self._structure)

    def _observation(self) -> np.ndarray:
        return observe(self._state, self._heads)

    def _info(self) -> dict[str, Any]:
        return {
            "action_mask": self.action_masks().astype(np.int8),
            "batches": self._batches,
            "lower_bound": self._bound,
        }

    def _check_types(self, graph: GraphStructure) -> None:
        if graph.type_keys == self.type_keys:
            return
        ours, theirs = (
            ", ".join(map(str, keys)) for keys in (self.type_keys, graph.type_keys)
        )
        raise PlanError(
            f"an environment is made for one tuple of types, {len(self.type_keys)} here"
            f" ({ours}), but this graph has {graph.num_types} ({theirs}); make another"
            " environment for it, with its type_keys, or have all graphs share their"
            " types: for your own model, record all instances first, and then call"
            " batched.graph(recordings); for sample_dag_structure, pass arities="
        )
