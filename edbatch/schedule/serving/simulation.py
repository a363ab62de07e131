"""A simulated server: requests arrive, and batches take their measured time.

Batches run in *waves*. At the beginning of a wave the server *looks*: it answers the
requests that are done, and others join. The batches of a wave are decided from what was
known then, so that they can be one program: scheduling, dispatching and fetching cost
an overhead once per wave, and no request joins or is answered before its end. A wave
ends when a policy decides to look or to wait, or when nothing is left to run. The clock
advances by the cost of each batch, which depends on its type and number of rows, by the
overhead of each wave, and while the server waits.

Not simulated are the recording of requests, whose time is the same for all policies,
and the compilation of programs, which a warm server does not need.
"""

from dataclasses import dataclass, replace

import numpy as np

from edbatch.arguments import check_number, check_type
from edbatch.errors import PolicyError
from edbatch.schedule.interrupt import keyboard_interrupts
from edbatch.schedule.serving import kernels
from edbatch.schedule.serving.library import InstanceLibrary
from edbatch.schedule.serving.policy import (
    JOIN_AT_ONCE,
    Admission,
    ServingState,
    deadline_or_never,
)

QUANTUM_MS = 0.5  # maximum time that a server waits after a decision to wait
_CONTINUOUS = -1.0  # `kernels.Rules.window_ms` without a window


@dataclass(frozen=True, eq=False)
class ServingConfig:
    """Costs and limits of a simulated server of ``T`` types.

    Attributes:
        cost_ms: Time of a batch by type and number of rows; column 0 is not read.
            Batches have at most ``W`` rows.
        overhead_ms: Fixed time of each wave, in addition to that of its batches.
        admission: When requests join.
        quantum_ms: Maximum time that the server waits after a decision to wait, if no
            request arrives.

    Raises:
        PolicyError: A number is out of range, or the costs have the wrong shape.

    Example:
        >>> import numpy as np
        >>> ServingConfig(np.full((2, 5), 1.0)).max_rows
        4
    """

    cost_ms: np.ndarray  # [T, W + 1] float64
    overhead_ms: float = 0.2
    admission: Admission = JOIN_AT_ONCE
    quantum_ms: float = QUANTUM_MS

    def __post_init__(self) -> None:
        try:
            costs = np.ascontiguousarray(self.cost_ms, np.float64)
        except (TypeError, ValueError):
            costs = np.empty(0)
        rows = costs[:, 1:] if costs.ndim == 2 else np.empty((0, 0))
        if not (rows.shape[1] and np.isfinite(rows).all() and (rows > 0).all()):
            raise PolicyError(
                "costs of a simulated server are a finite array [types, rows + 1] of"
                f" milliseconds above zero but this one has shape {costs.shape}, or"
                " another number; make it by edbatch.policies.serving.batch_costs"
            )
        object.__setattr__(self, "cost_ms", costs)
        for name in ("overhead_ms", "quantum_ms"):
            value = getattr(self, name)
            check_number(PolicyError, f"{name} of a simulated server", value, 0)
        if not self.quantum_ms > 0:
            raise PolicyError(
                "quantum_ms of a simulated server must be above 0, because a wait of 0"
                " ms would never end; give 0.5"
            )
        what = "an Admission, as Admission(window_ms=5)"
        name = "admission of a simulated server"
        check_type(PolicyError, name, self.admission, Admission, what)

    @property
    def max_rows(self) -> int:
        """Maximum number of rows of a batch."""
        return self.cost_ms.shape[1] - 1

    def under(self, admission: Admission) -> "ServingConfig":
        """Returns the same configuration with another admission.

        Args:
            admission: When requests join.

        Returns:
            The configuration.
        """
        return replace(self, admission=admission)

    def rules(self) -> kernels.Rules:
        """Returns the configuration in the form that compiled code reads."""
        window = self.admission.window_ms
        return kernels.Rules(
            self.cost_ms,
            float(self.overhead_ms),
            _CONTINUOUS if window is None else float(window),
            int(self.admission.max_requests),
            float(self.quantum_ms),
        )


@dataclass(frozen=True, eq=False)
class Served:
    """Outcomes of ``R`` requests.

    Attributes:
        arrival_ms: When each request arrived.
        finish_ms: When each request was done; infinite if it is not done.
        batches: Number of batches that ran.
        waves: Number of waves that they ran in.
        rows: Number of nodes that ran.
        busy_ms: Time that batches took, including the overhead of waves.

    Example:
        >>> import numpy as np
        >>> arrival, finish = np.array([0.0, 1.0]), np.array([4.0, 6.0])
        >>> served = Served(arrival, finish, 3, 3, 4, busy_ms=5.0)
        >>> served.latency_ms.tolist()
        [4.0, 5.0]
    """

    arrival_ms: np.ndarray  # [R] float64
    finish_ms: np.ndarray  # [R] float64
    batches: int
    waves: int
    rows: int
    busy_ms: float

    @property
    def latency_ms(self) -> np.ndarray:
        """Time from the arrival of each request until it is done; ``[R] float64``."""
        return self.finish_ms - self.arrival_ms


class Simulation:
    """Simulates requests to a server, from the first arrival to the last answer.

    Args:
        library: The instances.
        config: Costs and limits.
        instance: The instance of each request, by its number in the library; ``[R]``.
        arrival_ms: When each request arrives, ascending; ``[R]``.
        deadline_ms: Time from arrival to deadline of each request; None for no
            deadlines.
        track_heads: Whether to count heads, which takes time and memory.

    Raises:
        PolicyError: The arguments do not fit together.

    Example:
        >>> from edbatch.schedule.examples import chain
        >>> library = InstanceLibrary.of([chain("ab")])
        >>> config = ServingConfig(np.full((2, 5), 1.0), overhead_ms=0)
        >>> simulation = Simulation(library, config, [0, 0], [0.0, 0.5])
        >>> while simulation.is_running:  # without a look the second waits outside
        ...     rows = simulation.run(int(simulation.state().waiting.argmax()))
        >>> simulation.served().latency_ms.tolist()
        [2.0, 3.5]
    """

    def __init__(
        self,
        library: InstanceLibrary,
        config: ServingConfig,
        instance: np.ndarray | list[int],
        arrival_ms: np.ndarray | list[float],
        deadline_ms: float | None = None,
        *,
        track_heads: bool = False,
    ) -> None:
        chosen = np.asarray(instance, np.int32)
        times = np.asarray(arrival_ms, np.float64)
        if chosen.shape != times.shape or chosen.ndim != 1 or not len(chosen):
            raise PolicyError(
                "a simulation has an instance and a time of arrival for each of one"
                f" request or more but their shapes are {chosen.shape} and"
                f" {times.shape}; give lists of equal length"
            )
        if not (np.diff(times) >= 0).all() or not np.isfinite(times).all():
            raise PolicyError(
                "times of arrival ascend and are finite but these do not; sort them"
            )
        if chosen.min() < 0 or chosen.max() >= library.num_instances:
            raise PolicyError(
                f"instance {max(chosen.max(), -chosen.min())} is out of range for a"
                f" library of {library.num_instances} instances; draw smaller numbers"
            )
        if len(config.cost_ms) != library.num_types:
            raise PolicyError(
                f"the costs are for {len(config.cost_ms)} types but the instances have"
                f" {library.num_types}; make them for these type_keys"
            )
        deadlines = times + deadline_or_never(deadline_ms)
        self._library = compiled_library(library, track_heads)
        self._rules = config.rules()
        self._tracks_heads = track_heads
        with keyboard_interrupts():
            arrays = kernels.start_requests(self._library, chosen, times, deadlines)
        self.requests = kernels.Requests(*arrays)
        self._view = new_view(library.num_types)
        self.max_rows = config.max_rows
        self._settle()

    @property
    def compiled(self) -> tuple[kernels.Library, kernels.Rules, kernels.Requests]:
        """Arrays for compiled loops."""
        return self._library, self._rules, self.requests

    @property
    def is_running(self) -> bool:
        """Whether a node is waiting, so that there is something to decide."""
        return self._running

    @property
    def now_ms(self) -> float:
        """The clock."""
        return float(self.requests.clock[kernels.NOW])

    @property
    def integral(self) -> float:
        """Integral over time of the number of open requests, in request-milliseconds.

        A request is open from its arrival until it is done, so the final value is the
        sum of all latencies.
        """
        return float(self.requests.clock[kernels.INTEGRAL])

    @property
    def missed(self) -> int:
        """Requests that were done after their deadline."""
        return int(self.requests.counts[kernels.MISSED])

    @property
    def done(self) -> int:
        """Requests that are done."""
        return int(self.requests.counts[kernels.DONE])

    def state(self) -> ServingState:
        """Returns the state that a policy observes."""
        kernels.look(self.requests, self._view)
        count = self.requests.counts
        waiting, remaining, oldest, waited, slack, heads = map(np.copy, self._view)
        return ServingState(
            waiting=waiting,
            remaining=remaining,
            oldest_ms=oldest,
            waited_ms=waited,
            slack_ms=slack,
            in_flight=int(count[kernels.JOINED] - count[kernels.DONE]),
            arrived=int(count[kernels.SEEN]),
            batches=int(count[kernels.SINCE]),
            now_ms=float(self.requests.clock[kernels.LOOKED]),
            heads=heads if self._tracks_heads else None,
        )

    def run(self, chosen: int, max_rows: int | None = None) -> int:
        """Runs the waiting nodes of a type as one batch.

        Args:
            chosen: The type; at least one node of it is waiting.
            max_rows: Maximum number of nodes to run; None for the server's limit.

        Returns:
            Number of nodes that ran.
        """
        waiting = self.requests.tail[chosen] - self.requests.head[chosen]
        assert waiting > 0, "a type runs that has a waiting node"
        most = self.max_rows if max_rows is None else min(max_rows, self.max_rows)
        rows = kernels.run_batch(*self.compiled, chosen, most)
        self._settle()
        return int(rows)

    def wait(self) -> None:
        """Ends the wave, and waits until the next arrival, or for a quantum."""
        kernels.wait(*self.compiled)
        self._settle()

    def look(self) -> None:
        """Ends the wave: answers requests that are done, and admits new ones."""
        kernels.end_wave(*self.compiled)
        self._settle()

    def served(self) -> Served:
        """Returns the outcomes of the requests."""
        count, clock = self.requests.counts, self.requests.clock
        return Served(
            arrival_ms=self.requests.arrival_ms,
            finish_ms=self.requests.finish_ms,
            batches=int(count[kernels.BATCHES]),
            waves=int(count[kernels.WAVES]),
            rows=int(count[kernels.ROWS]),
            busy_ms=float(clock[kernels.BUSY]),
        )

    def _settle(self) -> None:
        self._running = bool(kernels.settle(*self.compiled))


def new_view(num_types: int) -> kernels.View:
    """Makes the arrays that `kernels.look` fills."""
    return kernels.View(
        waiting=np.zeros(num_types, np.int32),
        remaining=np.zeros(num_types, np.int32),
        oldest_ms=np.zeros(num_types),
        waited_ms=np.zeros(num_types),
        slack_ms=np.zeros(num_types),
        heads=np.zeros(num_types, np.int32),
    )


def compiled_library(library: InstanceLibrary, track_heads: bool) -> kernels.Library:
    """Returns a library in the form that compiled code reads."""
    num_types = library.num_types
    none = np.zeros((num_types, 0), np.int32), np.zeros((0, num_types), np.int32)
    heads = (library.blocked, library.head_counts) if track_heads else none
    return kernels.Library(
        library.start,
        library.node_type,
        library.consumer_start,
        library.consumers,
        library.indegree,
        library.instance_types,
        np.ascontiguousarray(heads[0]),
        np.ascontiguousarray(heads[1]),
    )
