"""Gymnasium environment for serving requests that arrive at random times.

The simulation is the one in which `edbatch.policies.serving` trains and compares
policies. The environment is for other learners.
"""

from typing import Any, SupportsInt

import gymnasium
import numpy as np
from gymnasium import spaces

from edbatch.arguments import check_number, check_type
from edbatch.envs.actions import gives_up, read_action, started
from edbatch.envs.samplers import Sampler, sample_tree_structure
from edbatch.errors import PlanError, shown
from edbatch.schedule.interrupt import keyboard_interrupts
from edbatch.schedule.serving.arrivals import Arrivals
from edbatch.schedule.serving.kernels import LOOK, WAIT
from edbatch.schedule.serving.library import InstanceLibrary
from edbatch.schedule.serving.policy import ServingState, deadline_or_never
from edbatch.schedule.serving.simulation import ServingConfig, Simulation

_REWARDS = ("latency", "deadline")
_SAMPLES = 64  # minibatches of the default sampler
_NEVER_MS = np.float32(1e9)  # replaces longer and infinite times


class ServingEnv(gymnasium.Env[np.ndarray, SupportsInt]):
    """Choose what a server runs next, or let it wait, while requests arrive.

    Action: ``Discrete(T + 2)``: a type, whose waiting nodes of all requests in flight
    run as one batch, up to the rows that the server allows; ``T`` to wait until the
    next arrival, or for a quantum; ``T + 1`` to look: this ends the wave of batches,
    answers finished requests and lets others join. Waiting is allowed only at the
    beginning of a wave, looking only later. A server that looks after every batch pays
    the overhead of a wave for each batch.

    Observation: ``Box [T + 1, 5] float32``. Per type: the waiting nodes; the remaining
    nodes of requests in flight; the time since the arrival of the oldest request with a
    waiting node; the time since the first of these nodes became ready; and the least
    time to a deadline. The last row: requests in flight, requests that have arrived but
    not joined, batches of the wave, and two zeros. Times are in milliseconds, as of the
    beginning of the wave, and at most 1e9.

    Reward: `"latency"`: minus the integral of the number of requests in the system over
    the time of the action, in request-milliseconds; summed over an episode, minus the
    sum of all latencies. The first action also pays for the admission window before it.
    `"deadline"`: minus the number of requests answered too late. An action that is not
    allowed changes nothing and gives `invalid_reward`.

    Episode: truncated when all `requests` are answered; serving has no natural end.

    Info: ``action_mask`` (``[T + 2] int8``), ``now_ms``, ``answered``, ``late``.

    Args:
        library: The instances that requests are drawn from; small random trees if None.
        config: Costs of batches and limits; 50 µs per batch and 2 µs per row if None.
        arrivals: Arrival process; Poisson, 500 requests per second, if None.
        requests: Number of requests per episode.
        deadline_ms: Time from arrival to deadline; None for no deadline.
        reward: `"latency"` or `"deadline"`.
        invalid_reward: See above.
        max_invalid_actions: Number of invalid actions in a row that truncates an
            episode; None for no limit.
        render_mode: `"ansi"` or None.

    Raises:
        PlanError: An argument has the wrong type or is out of range.
        ValueError: The render mode is unknown.

    Example:
        >>> env = gymnasium.make("edbatch/Serving-v0", requests=5)
        >>> observation, info = env.reset(seed=0)
        >>> truncated = False
        >>> while not truncated:
        ...     action = env.action_space.sample(info["action_mask"])
        ...     observation, reward, _, truncated, info = env.step(action)
        >>> info["answered"]
        5
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012

    def __init__(
        self,
        library: InstanceLibrary | None = None,
        config: ServingConfig | None = None,
        arrivals: Arrivals | None = None,
        *,
        requests: int = 200,
        deadline_ms: float | None = None,
        reward: str = "latency",
        invalid_reward: float = -1000.0,
        max_invalid_actions: int | None = 1000,
        render_mode: str | None = None,
    ) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(
                f"render_mode is 'ansi' or None but is {shown(render_mode)}; use 'ansi'"
            )
        if library is None:
            library = sample_library(sample_tree_structure, _SAMPLES, 0)
        _check(library, config, arrivals)
        check_number(PlanError, "requests of an environment", requests, 1, whole=True)
        check_number(PlanError, "invalid_reward of an environment", invalid_reward)
        if max_invalid_actions is not None:
            limit = "max_invalid_actions of an environment"
            check_number(PlanError, limit, max_invalid_actions, 0, whole=True)
        given: object = reward  # may be an array, for which `in` would fail
        known = isinstance(given, str) and given in _REWARDS
        if not known or (reward == "deadline" and deadline_ms is None):
            raise PlanError(
                "the reward of an environment is 'latency', or 'deadline' with a"
                f" deadline_ms, but is {shown(reward)} with {shown(deadline_ms)}; give"
                " for example reward='deadline', deadline_ms=50"
            )
        deadline_or_never(deadline_ms)
        self.library = library
        self.type_keys = library.type_keys
        if config is None:
            config = ServingConfig(_default_costs(library.num_types))
        self.config = config
        self.arrivals = Arrivals(rate=500) if arrivals is None else arrivals
        self.num_requests = requests
        self.deadline_ms = deadline_ms
        self.reward = reward
        self.invalid_reward = invalid_reward
        self.max_invalid_actions = max_invalid_actions
        self.render_mode = render_mode
        num_types = library.num_types
        self.action_space = spaces.Discrete(num_types + 2)
        low = np.zeros((num_types + 1, 5), np.float32)
        low[:-1, 4] = -_NEVER_MS
        high = np.full((num_types + 1, 5), _NEVER_MS, np.float32)
        high[:, :2] = 2.0**31
        self.observation_space = spaces.Box(low, high)
        self._simulation: Simulation | None = None

    def __repr__(self) -> str:
        """Summary in one line."""
        return f"<ServingEnv of {len(self.type_keys)} types>"

    @keyboard_interrupts()
    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts an episode with an idle server that the first request has joined.

        The request joins when it arrives; with window admission, when the first window
        is over.

        Args:
            seed: Seed that makes this and the following episodes reproducible.
            options: None; this environment has no options.

        Returns:
            Observation and info.

        Raises:
            PlanError: An option is given.
        """
        if options:
            raise PlanError(
                "reset of this environment takes no options but there are"
                f" {shown(options)}; make another environment instead"
            )
        super().reset(seed=seed)
        count = self.num_requests
        instance = self.np_random.integers(self.library.num_instances, size=count)
        times = self.arrivals.draw(self.np_random, count)
        self._simulation = Simulation(
            self.library, self.config, instance, times, self.deadline_ms
        )
        self._invalid_in_a_row = 0
        self._integral, self._late = 0.0, 0
        self._last = "the first request has arrived"
        return self._seen(self._simulation)

    @keyboard_interrupts()
    def step(
        self, action: SupportsInt
    ) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Runs a type, waits, or looks.

        Args:
            action: See `ServingEnv`.

        Returns:
            Observation, reward, False, whether the episode is over, and info. After
            the end nothing changes and the reward is 0.

        Raises:
            ValueError: The action is not in the action space.
            gymnasium.error.ResetNeeded: No episode has been started.
        """
        simulation = self._started()
        chosen = read_action(action, len(self.type_keys) + 2, "a number")
        if not simulation.is_running:
            observation, info = self._seen(simulation)
            return observation, 0.0, False, True, info
        if not self._masks(simulation.state())[chosen]:
            self._invalid_in_a_row += 1
            self._last = "an action that is not allowed; nothing ran"
            reward = float(self.invalid_reward)
        else:
            self._invalid_in_a_row = 0
            self._act(simulation, chosen)
            reward = self._earned(simulation)
        observation, info = self._seen(simulation)
        ends = gives_up(self.max_invalid_actions, self._invalid_in_a_row)
        return observation, reward, False, ends or not simulation.is_running, info

    def action_masks(self) -> np.ndarray:
        """Returns which actions are allowed; called by sb3-contrib's MaskablePPO.

        Returns:
            ``[T + 2] bool``; all False after the end.
        """
        simulation = self._started()
        return self._masks(simulation.state()) & simulation.is_running

    def state(self) -> ServingState:
        """Returns the state that a `ServingPolicy` would see."""
        return self._started().state()

    def action_of(self, decision: int) -> int:
        """Converts a `ServingPolicy`'s decision to an action.

        Args:
            decision: A type, `WAIT` or `LOOK`.

        Returns:
            The action.
        """
        num_types = len(self.type_keys)
        return {WAIT: num_types, LOOK: num_types + 1}.get(decision, decision)

    def render(self) -> str | None:
        """Draws the server as text.

        Returns:
            The last event, and the waiting nodes of each type; None if the render mode
            is None.
        """
        if self.render_mode is None:
            return None
        simulation = self._started()
        state = simulation.state()
        names = [str(key) for key in self.type_keys]
        width = max(map(len, ["type", *names]))
        lines = [
            f"{simulation.now_ms:.2f} ms: {self._last}; {state.in_flight} in flight,"
            f" {simulation.done} of {self.num_requests} answered",
            f"{'type':{width}}  waiting  remaining  oldest ms",
        ]
        rows = zip(names, state.waiting, state.remaining, state.oldest_ms, strict=True)
        for name, waiting, left, oldest in rows:
            lines.append(f"{name:{width}}  {waiting:7}  {left:9}  {oldest:9.2f}")
        return "\n".join(lines)

    def _act(self, simulation: Simulation, chosen: int) -> None:
        if chosen == len(self.type_keys):
            simulation.wait()
            self._last = "waited"
        elif chosen > len(self.type_keys):
            simulation.look()
            self._last = "looked"
        else:
            rows = simulation.run(chosen)
            self._last = f"ran {rows} of {self.type_keys[chosen]}"

    def _earned(self, simulation: Simulation) -> float:
        integral, late = simulation.integral, simulation.missed
        of_latency, of_deadline = integral - self._integral, late - self._late
        self._integral, self._late = integral, late
        return -float(of_latency if self.reward == "latency" else of_deadline)

    def _started(self) -> Simulation:
        return started(self._simulation)

    @staticmethod
    def _masks(state: ServingState) -> np.ndarray:
        is_first = state.batches == 0
        return np.append(state.waiting > 0, [is_first, not is_first])

    def _seen(self, simulation: Simulation) -> tuple[np.ndarray, dict[str, Any]]:
        state = simulation.state()
        masks = self._masks(state) & simulation.is_running
        info = {
            "action_mask": masks.astype(np.int8),
            "now_ms": simulation.now_ms,
            "answered": simulation.done,
            "late": simulation.missed,
        }
        return observe_serving(state), info


def observe_serving(state: ServingState) -> np.ndarray:
    """Describes a server's state as an observation of `ServingEnv`.

    Args:
        state: The state, of T types.

    Returns:
        ``[T + 1, 5] float32``.

    Example:
        >>> import numpy as np
        >>> from edbatch.schedule.serving import ServingState
        >>> state = ServingState(
        ...     waiting=np.array([3, 5]),
        ...     remaining=np.array([3, 9]),
        ...     oldest_ms=np.array([4.0, 1.0]),
        ...     waited_ms=np.array([0.5, 0.5]),
        ...     slack_ms=np.array([np.inf, np.inf]),
        ...     in_flight=3,
        ... )
        >>> observe_serving(state).shape
        (3, 5)
    """
    seen = np.zeros((state.num_types + 1, 5), np.float32)
    seen[:-1, 0] = state.waiting
    seen[:-1, 1] = state.remaining
    seen[:-1, 2] = np.minimum(state.oldest_ms, _NEVER_MS)
    seen[:-1, 3] = np.minimum(state.waited_ms, _NEVER_MS)
    seen[:-1, 4] = np.clip(state.slack_ms, -_NEVER_MS, _NEVER_MS)
    seen[-1, :3] = state.in_flight, state.arrived, state.batches
    return seen


def sample_library(sampler: Sampler, count: int, seed: int) -> InstanceLibrary:
    """Samples instances to draw requests from.

    Args:
        sampler: A sampler of minibatches, which are split into their instances.
        count: Number of minibatches.
        seed: Seed of the random numbers that the sampler is called with.

    Returns:
        The library.

    Example:
        >>> sample_library(sample_tree_structure, 2, 0).num_instances
        16
    """
    rng = np.random.default_rng(seed)
    return InstanceLibrary.of([sampler(rng) for _ in range(count)])


def _default_costs(num_types: int) -> np.ndarray:
    return np.tile(0.05 + 0.002 * np.arange(257), (num_types, 1))


def _check(library: object, config: object, arrivals: object) -> None:
    for name, value, kind, how in (
        ("library", library, InstanceLibrary, "InstanceLibrary.of(structures)"),
        ("config", config, ServingConfig, "ServingConfig(costs)"),
        ("arrivals", arrivals, Arrivals, "Arrivals(rate=100)"),
    ):
        if value is not None:
            what = f"a {kind.__name__}, as {how}"
            check_type(PlanError, f"{name} of an environment", value, kind, what)
