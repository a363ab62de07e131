"""Decisions of a serving policy: which batches run in the next wave of a server.

The policy observes the same state as in simulation (`edbatch.schedule.serving`): which
nodes needed by requests in flight are ready, since when, and for which requests. It
chooses one batch after the other until it decides to look at values or to wait, or no
node is left; these batches run as one wave.

A policy cannot stall the server: if a node has been ready for longer than the server's
patience, the wave runs all nodes that are needed.
"""

import logging
from collections.abc import Sequence
from os import PathLike
from typing import Any

import numpy as np

from edbatch.errors import EdbatchError, shown
from edbatch.graph.node_type import TypeKey
from edbatch.policies.registry import is_policy_name
from edbatch.policies.serving import load_serving_policy
from edbatch.policies.serving.compiled_wave import decide_wave
from edbatch.schedule.schedule import Schedule
from edbatch.schedule.serving.kernels import LOOK, WAIT, View
from edbatch.schedule.serving.policy import (
    ServingPolicy,
    ServingState,
    check_decision,
)
from edbatch.schedule.serving.simulation import new_view
from edbatch.schedule.serving.wave_frontier import (
    BATCHES,
    BEFORE,
    RANK,
    ROWS,
    WaveFrontier,
    add_batch,
    describe,
    start_wave,
)
from edbatch.serving.flight_nodes import FlightNodes

log = logging.getLogger("edbatch")


def as_serving_policy(policy: Any) -> ServingPolicy:
    """Returns a serving policy, read from a file if a path is given.

    Args:
        policy: The path of a file from ``train-policy --serving``, or the policy.

    Returns:
        The policy.

    Raises:
        EdbatchError: The argument is neither.
        PolicyError: The file cannot be read.
    """
    if isinstance(policy, ServingPolicy):
        return policy
    is_name = isinstance(policy, str) and is_policy_name(policy)
    if isinstance(policy, str | PathLike) and not is_name:
        return load_serving_policy(policy)
    raise EdbatchError(
        "policy of eb.Server is a serving policy, or the path of a file of"
        f" train-policy --serving, but is {shown(policy)}, of type"
        f" {type(policy).__name__}; a policy for minibatches belongs to eb.batch"
    )


def of_another_model(policy: Any, type_keys: Sequence[TypeKey]) -> str | None:
    """Checks whether a policy was trained on none of a model's cells.

    Args:
        policy: The policy.
        type_keys: The model's types; only cells and parameter paths are compared.

    Returns:
        A message if so; None if it was trained on some of them, or has no types.
    """
    known = {(each.cell, each.path) for each in getattr(policy, "types", ())}
    asked = {(each.cell, each.path) for each in type_keys}
    if not known or not asked or known & asked:
        return None
    called, trained = min(map(str, type_keys)), min(map(str, policy.types))
    return (
        "the policy of eb.Server was trained on none of the operations that its model"
        f" has called, such as {called!r}, but on {trained!r}"
        f"{' and others' if len(policy.types) > 1 else ''}; usually it is that of"
        " another model; train one for this one by train-policy --serving"
    )


class WaveDecider:
    """Asks a serving policy about the waves of one runner.

    Args:
        policy: The policy.
        max_rows: Maximum width of a batch, in rows.
        patience_ms: How long a node may be ready before the server overrules the
            policy.
        told: Warnings about the policy that were logged already; none is logged after
            the first.

    Attributes:
        policy: The policy, adapted to the latest set of types.
    """

    def __init__(
        self,
        policy: ServingPolicy,
        max_rows: int,
        patience_ms: float,
        told: set[str] | None = None,
    ) -> None:
        self.policy = self._given = policy
        self._told = set() if told is None else told
        self._types: tuple[TypeKey, ...] | None = None
        own = policy.max_rows
        self._max_rows = max_rows if own is None else min(own, max_rows)
        self._patience_ms = patience_ms
        self._view: View | None = None
        self._rank = 0
        # Nodes that were ready but did not run, ascending by key.
        self._key = np.zeros(0, np.int64)
        self._ready_ms = np.zeros(0)
        self._kept_rank = np.zeros(0, np.int64)
        self._ready_in = np.zeros(0, np.int32)
        self._batches = 0

    def forget(self) -> None:
        """Discards the latest decision, whose wave does not run.

        Nodes that the wave would have made ready are not ready.
        """
        kept = self._ready_in == BEFORE
        self._key, self._ready_ms = self._key[kept], self._ready_ms[kept]
        self._kept_rank, self._ready_in = self._kept_rank[kept], self._ready_in[kept]
        self._batches = 0

    def decide(
        self, nodes: FlightNodes, now_ms: float, arrived: int
    ) -> Schedule | int | None:
        """Decides a wave.

        Args:
            nodes: The nodes that can run; at least one.
            now_ms: The server's clock.
            arrived: Number of requests that have arrived but not joined.

        Returns:
            The schedule of the wave, as positions in `nodes`; `WAIT`; or None if the
            server overrules the policy, and all nodes run.

        Raises:
            PolicyError: The policy made an invalid decision.
            Exception: Raised by the policy.
        """
        self._bind(nodes.type_keys)
        frontier = self._frontier(nodes, now_ms)
        is_ready = frontier.rank >= 0
        if now_ms - frontier.ready_ms[is_ready].min() > self._patience_ms:
            self._batches = 0
            return None
        in_flight = len(nodes.arrival_ms)
        assert self._view is not None, "it was made for the types"
        choice = getattr(self.policy, "choice", None)
        if choice is None:
            decided = self._ask(frontier, now_ms, in_flight, arrived)
        else:
            kind, weights, scale_ms, wave = choice
            decided = decide_wave(
                frontier,
                kind,
                weights,
                scale_ms,
                wave,
                self._view,
                in_flight,
                self._max_rows,
                now_ms,
            )
        self._keep(nodes, frontier)
        return WAIT if decided == WAIT else schedule_of(frontier)

    def ran(self, began_ms: float, ended_ms: float) -> None:
        """Records when the latest decided wave began and ended.

        All of its batches are assumed to take equally long: nodes made ready by a batch
        are ready since the end of that batch.

        Args:
            began_ms: When it began, on the server's clock.
            ended_ms: When it ended.
        """
        batch_ms = (ended_ms - began_ms) / max(1, self._batches)
        self.ran_until(began_ms + batch_ms * np.arange(1, self._batches + 1))

    def ran_until(self, end_ms: np.ndarray) -> None:
        """Records when each batch of the latest decided wave ended.

        Args:
            end_ms: End of each batch, on the server's clock; ``[S] float64``.
        """
        fresh = self._ready_in != BEFORE
        self._ready_ms[fresh] = end_ms[self._ready_in[fresh]]
        self._ready_in[:] = BEFORE

    def state(
        self, frontier: WaveFrontier, now_ms: float, in_flight: int, arrived: int
    ) -> ServingState:
        """Returns the policy's observation."""
        assert self._view is not None, "it was made for the types"
        describe(frontier, now_ms, self._view)
        waiting, remaining, oldest, waited, slack, heads = map(np.copy, self._view)
        return ServingState(
            waiting=waiting,
            remaining=remaining,
            oldest_ms=oldest,
            waited_ms=waited,
            slack_ms=slack,
            in_flight=in_flight,
            arrived=arrived,
            batches=int(frontier.counts[BATCHES]),
            now_ms=now_ms,
            heads=heads if frontier.blocked.shape[1] else None,
        )

    def _bind(self, type_keys: tuple[TypeKey, ...]) -> None:
        if self._types is not type_keys and self._types != type_keys:
            sentence = of_another_model(self._given, type_keys)
            if sentence is not None and not self._told:
                self._told.add(sentence)
                log.warning("%s", sentence)
            # From the given policy: one adapted to fewer types has dropped the others.
            self.policy = self._given.for_types(type_keys)
            self._view = new_view(len(type_keys))
        self._types = type_keys

    def _frontier(self, nodes: FlightNodes, now_ms: float) -> WaveFrontier:
        count = len(nodes.key)
        ready_ms, rank = np.zeros(count), np.full(count, -1, np.int64)
        if len(self._key):
            place = np.searchsorted(self._key, nodes.key)
            place[place == len(self._key)] = 0
            known = self._key[place] == nodes.key
            ready_ms[known] = self._ready_ms[place[known]]
            rank[known] = self._kept_rank[place[known]]
        return start_wave(
            nodes.node_type,
            nodes.owner,
            nodes.readers,
            (ready_ms, rank, self._rank),
            (nodes.arrival_ms, nodes.deadline_ms),
            len(nodes.type_keys),
            now_ms,
            bool(getattr(self.policy, "needs_heads", True)),
        )

    def _ask(
        self, frontier: WaveFrontier, now_ms: float, in_flight: int, arrived: int
    ) -> int:
        """Asks for batches until the policy stops; returns the last decision."""
        policy = self.policy
        while True:
            state = self.state(frontier, now_ms, in_flight, arrived)
            if not state.waiting.any():
                return LOOK
            decision = policy.decide(state)
            check_decision(policy, state, decision)
            if decision in (WAIT, LOOK):
                return decision
            add_batch(frontier, int(decision), self._max_rows, now_ms)

    def _keep(self, nodes: FlightNodes, frontier: WaveFrontier) -> None:
        """Remembers the nodes that are ready but do not run in this wave."""
        left = frontier.rank >= 0
        left[frontier.order[: frontier.counts[ROWS]]] = False
        kept = np.flatnonzero(left)
        kept = kept[np.argsort(nodes.key[kept], kind="stable")]
        self._key, self._ready_ms = nodes.key[kept], frontier.ready_ms[kept]
        self._kept_rank, self._ready_in = frontier.rank[kept], frontier.ready_in[kept]
        self._batches = int(frontier.counts[BATCHES])
        self._rank = int(frontier.counts[RANK])


def schedule_of(frontier: WaveFrontier) -> Schedule:
    """Returns the batches chosen for a wave, as a schedule."""
    batches, rows = frontier.counts[BATCHES], frontier.counts[ROWS]
    return Schedule(
        frontier.order[:rows].copy(),
        frontier.batch_start[: batches + 1].copy(),
        frontier.batch_type[:batches].copy(),
    )
