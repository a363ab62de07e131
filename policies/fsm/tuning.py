"""Tunes the weights of a smoothed bound by the cross-entropy method.

Rubinstein 1999, with noise that keeps the search from converging too early, as in Szita
and Lőrincz, "Learning Tetris using the noisy cross-entropy method", 2006. Tetris is the
same kind of problem: a linear function of a few features decides each step of a long
game. A generation samples weights around a mean, schedules the first minibatches (at
least one, otherwise at most `_NODES` nodes in all) with each sample, and moves the mean
and the spread to those of the best samples. Weights are positive, so their logarithms
are sampled.

Gain: 0.016 to 0.037 of the ratio to the lower bound on lattices and programs, none on
trees (docs/results-policies.md). Three times the generations gain another 0.005 at
most.

A generation of P samples on M minibatches of N nodes costs O(P M T (N + E)). Each mean
is scored as well, and the best one is kept, so on these minibatches the result is never
worse than the initial weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edbatch.graph.structure import GraphStructure
from edbatch.policies.fsm.encoding import FALL
from edbatch.policies.fsm.evaluator import cost_of
from edbatch.policies.fsm.state_index import index_sequences
from edbatch.policies.fsm.table_run import Binding, run_table
from edbatch.policies.smooth_bound.weights import BoundWeights

POPULATION = 32
# Maximum number of nodes that each sample schedules, so that tuning takes seconds.
_NODES = 300_000
_ELITE = 6
_FIRST_SPREAD = 0.5
_NOISE = 0.05  # added to the spread, decreasing to 0 over the generations


@dataclass(frozen=True, eq=False)
class Tuning:
    """The state of tuning ``D`` weights: one per type, and the weight of the path.

    Attributes:
        generation: Number of generations so far.
        mean: Mean of the logarithms of the weights.
        spread: Standard deviation of the logarithms of the weights.
        best: The best mean so far.
        best_batches: Mean batches per training minibatch with `best`, or their cost.
    """

    generation: int
    mean: np.ndarray  # [D] float64
    spread: np.ndarray  # [D] float64
    best: np.ndarray  # [D] float64
    best_batches: float

    @property
    def weights(self) -> BoundWeights:
        """The best weights so far, rounded as in files."""
        return as_weights(self.best)


def as_weights(logarithms: np.ndarray) -> BoundWeights:
    """Converts logarithms of weights, ``[T + 1]``, to weights with three decimals."""
    *types, path = (round(float(each), 3) for each in np.exp(logarithms))
    return BoundWeights(tuple(types), path)


def start_tuning(
    structures: Sequence[GraphStructure],
    num_types: int,
    cost: np.ndarray | None = None,
) -> Tuning:
    """Returns the initial state of tuning, with equal weights.

    Args:
        structures: The minibatches to train on.
        num_types: Number of types of the model.
        cost: Cost of a batch of each type; 1 if None. ``[T]``.
    """
    equal = np.zeros(num_types + 1)
    return Tuning(
        generation=0,
        mean=equal,
        spread=np.full(num_types + 1, _FIRST_SPREAD),
        best=equal,
        best_batches=_play(_first(structures), equal, cost),
    )


def _first(structures: Sequence[GraphStructure]) -> Sequence[GraphStructure]:
    """Returns the first minibatch, and more up to `_NODES` nodes in all."""
    nodes = np.cumsum([each.num_nodes for each in structures])
    return structures[: max(1, int(np.searchsorted(nodes, _NODES, side="right")))]


def next_generation(
    tuning: Tuning,
    structures: Sequence[GraphStructure],
    generations: int,
    seed: int,
    cost: np.ndarray | None = None,
) -> Tuning:
    """Runs one generation and returns the new state of tuning.

    Args:
        tuning: The state so far.
        structures: The minibatches to train on.
        generations: Total number of generations.
        seed: Seed of all generations; any integer, taken modulo 2⁶⁴.
        cost: As for `start_tuning`.
    """
    rng = np.random.default_rng([seed % 2**64, tuning.generation])
    shape = (POPULATION, len(tuning.mean))
    samples = tuning.mean + tuning.spread * rng.standard_normal(shape)
    played = _first(structures)
    scores = [_play(played, each, cost) for each in samples]
    elite = samples[np.argsort(scores, kind="stable")[:_ELITE]]
    mean = elite.mean(axis=0)
    mean -= mean.mean()  # only ratios of weights matter
    noise = _NOISE * max(0.0, 1 - (tuning.generation + 1) / generations)
    best, best_batches = tuning.best, tuning.best_batches
    batches = _play(played, mean, cost)
    if batches < best_batches:
        best, best_batches = mean, batches
    return Tuning(
        generation=tuning.generation + 1,
        mean=mean,
        spread=elite.std(axis=0) + noise,
        best=best,
        best_batches=best_batches,
    )


def _play(
    structures: Sequence[GraphStructure],
    logarithms: np.ndarray,
    cost: np.ndarray | None,
) -> float:
    """Mean batches, or cost, if the type of largest marginal gain always runs."""
    num_types = len(logarithms) - 1
    type_of = np.arange(num_types, dtype=np.int32)
    binding = Binding(type_of, *as_weights(logarithms).arrays(type_of, num_types))
    index, _ = index_sequences(())
    action = np.empty(0, np.int32)
    batches = 0.0
    for each in structures:
        *_, batch_type, _ = run_table(each, FALL, binding, index, action)
        batches += cost_of(batch_type, cost)
    return batches / len(structures)
