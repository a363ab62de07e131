"""Serving heuristics: scheduling heuristics, order of arrival, and fixed windows.

*Cells first come* is the idea of BatchMaker (Gao, Yu, Wu, Li: Low Latency RNN Inference
with Cellular Batching, EuroSys 2018): batches of one cell, across requests, in the
order in which cells became ready. *Run at once* and *windows* batch requests: the
gathered requests run to their end before the next ones join.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from edbatch.graph.node_type import TypeKey
from edbatch.policies.serving.choices import AGENDA, GREEDY, LARGEST, OLDEST, READY
from edbatch.policies.serving.deciding import (
    UNLIMITED,
    Choice,
    check_types,
    decide_by,
)
from edbatch.schedule.serving.library import InstanceLibrary
from edbatch.schedule.serving.policy import JOIN_AT_ONCE, Admission, ServingState

WINDOWS_MS = (2, 5, 10)
WINDOW_REQUESTS = 64
CELL_ROWS = 64
# Batches per wave: short waves let new requests join sooner, long waves save the
# overhead of waves.
WAVES = (1, 8, 32)


@dataclass(frozen=True)
class ServingHeuristic:
    """A serving policy without memory and without weights.

    Attributes:
        name: Short name for tables.
        kind: The criterion, a constant of `edbatch.policies.serving.choices`.
        wave: Batches per wave, from one look for new requests to the next.
        admission: When requests join.
        max_rows: Maximum rows of a batch; None for the server's own limit.
        depths: Mean depth of the nodes of each type, for the agenda.
        num_types: Number of types that it is for.
        depth_of: Mean depth by type, from which `for_types` takes `depths`.

    Example:
        >>> state = ServingState(
        ...     waiting=np.array([3, 5]),
        ...     remaining=np.array([3, 9]),
        ...     oldest_ms=np.array([4.0, 1.0]),
        ...     waited_ms=np.array([0.5, 1.0]),
        ...     slack_ms=np.array([np.inf, np.inf]),
        ...     in_flight=4,
        ... )
        >>> ServingHeuristic("largest", LARGEST, num_types=2).decide(state)
        1
        >>> ServingHeuristic("oldest", OLDEST, num_types=2).decide(state)
        0
    """

    name: str
    kind: int
    wave: int = 1
    admission: Admission = JOIN_AT_ONCE
    max_rows: int | None = None
    depths: tuple[float, ...] = ()
    num_types: int = 0
    depth_of: Mapping[TypeKey, float] | None = None

    @property
    def needs_heads(self) -> bool:
        """Whether it uses the heads of each type."""
        return self.kind == GREEDY

    def for_types(self, type_keys: tuple[TypeKey, ...]) -> "ServingHeuristic":
        """Returns the heuristic for a model's types; see `ServingPolicy`.

        Args:
            type_keys: The types of the model.

        Returns:
            The policy for these types, in this order.
        """
        known = self.depth_of or {}
        mean = float(np.mean([*known.values()])) if known else 0.0
        depths = tuple(known.get(key, mean) for key in type_keys)
        return replace(self, depths=depths, num_types=len(type_keys))

    def decide(self, state: ServingState) -> int:
        """Decides what runs next; see `ServingPolicy`.

        Args:
            state: The state of the server.

        Returns:
            A type, `WAIT` or `LOOK`.
        """
        check_types(self.name, self.num_types, state)
        return decide_by(self.choice, state)

    @cached_property
    def choice(self) -> Choice:
        """The policy's arguments of `choose`, for compiled code."""
        weights = np.zeros((1, max(1, self.num_types)))
        if self.kind == AGENDA:
            weights[0, : len(self.depths)] = self.depths
        return self.kind, weights, 1.0, self.wave


def serving_heuristics(
    library: InstanceLibrary, waves: Sequence[int] = WAVES
) -> tuple[ServingHeuristic, ...]:
    """Makes all heuristics for the types of a library.

    Args:
        library: Instances, whose mean depths the agenda uses.
        waves: Lengths of waves, in batches; each of the four scheduling heuristics is
            made once per length.

    Returns:
        Agenda, greedy, largest first and oldest first, in waves of each length; cells
        first come; run at once, and fixed windows.

    Example:
        >>> from edbatch.schedule.examples import chain
        >>> found = serving_heuristics(InstanceLibrary.of([chain("ab")]))
        >>> [each.name for each in found][7:14]  # doctest: +NORMALIZE_WHITESPACE
        ['oldest, 8', 'agenda, 32', 'greedy, 32', 'largest, 32', 'oldest, 32',
         'cells first come', 'run at once']
    """
    depth_of = dict(zip(library.type_keys, library.mean_depth.tolist(), strict=True))
    by_kind = {"agenda": AGENDA, "greedy": GREEDY, "largest": LARGEST, "oldest": OLDEST}
    found = [
        ServingHeuristic(name if wave == 1 else f"{name}, {wave}", kind, wave=wave)
        for wave in waves
        for name, kind in by_kind.items()
    ]
    found.append(ServingHeuristic("cells first come", READY, max_rows=CELL_ROWS))
    windows = {"run at once": 0.0} | {f"window {ms} ms": ms for ms in WINDOWS_MS}
    found += [
        ServingHeuristic(
            name, AGENDA, wave=UNLIMITED, admission=Admission(ms, WINDOW_REQUESTS)
        )
        for name, ms in windows.items()
    ]
    return tuple(
        replace(each, depth_of=depth_of).for_types(library.type_keys) for each in found
    )
