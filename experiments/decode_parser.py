"""How fast does a parser that follows its own transitions parse a minibatch?

The transition parser decodes sampled sentences, with random parameters, in three ways:
in waves (`eb.value` in a batched function); sentence by sentence, with each cell
compiled separately; and in rounds, as one would without `eb.value`: each round scores
the next transition of all sentences in one minibatch, which runs all previous
transitions again. In a clone, on an idle machine:

    python experiments/decode_parser.py
    python experiments/decode_parser.py --hidden 64,256 --rounds 5

Milliseconds are the minimum of several runs. "Small ms" is the time per wave of a model
whose states have two numbers, so that the device computes almost nothing: recording,
scheduling, encoding, dispatch, fetching and the model's own Python. "Host ms" is the
time per wave, in the full-size model, to schedule and encode it (`Rollout.report`).
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import jax
import numpy as np

import edbatch as eb
from edbatch.data import Configuration
from edbatch.graph.context import jitted_cells
from edbatch.models import get_workload
from edbatch.models.transition_parser import SHIFT, follow, init_params, parse

from arguments import option, parse_arguments

ROW = "{:>7} {:>10} {:>14} {:>10} {:>6} {:>11} {:>11} {:>11}"
HEAD = ROW.format(
    "hidden", "waves ms", "one by one ms", "rounds ms", "waves", "ms a wave",
    "small ms", "host ms",
)  # fmt: skip


@dataclass(frozen=True)
class Arguments:
    hidden: str = option("128", "Lengths of the states.")
    sentences: int = option(64, "Sentences of the minibatch.")
    vocabulary: int = option(10_000, "Number of words.")
    rounds: int = option(5, "How often each way is timed.")
    seed: int = option(0, "Seed of sentences and parameters.")


@dataclass
class _Prefix:
    """A sentence and the transitions made so far."""

    sentence: Any
    transitions: list[int]


class _Reached(Exception):
    """Raised at the end of the transitions of a `_Prefix`."""


def score_next(params: Any, prefix: _Prefix) -> Any:
    """Scores the next transition; repeats all previous ones from the start."""
    made = iter(prefix.transitions)
    last: list[Any] = []

    def choose(logits: Any, where: Any) -> int:
        last[:] = [logits]
        transition = next(made, None)
        if transition is None:
            raise _Reached
        return transition

    with suppress(_Reached):
        follow(params, prefix.sentence, choose)
    return last[0]


def parse_in_rounds(batched: Any, params: Any, sentences: Sequence[Any]) -> list[Any]:
    """Parses in rounds that repeat previous transitions; returns the transitions."""
    prefixes = [_Prefix(each, []) for each in sentences]
    places = [Configuration(len(each)) for each in sentences]
    left = list(range(len(sentences)))
    while left:
        logits = np.asarray(batched(params, [prefixes[k] for k in left]))
        for scores, k in zip(logits, left, strict=True):
            where = places[k]
            legal = where.legal(len(scores))
            own = int(np.where(legal, scores, -np.inf).argmax())
            transition = own if where.may_reduce else SHIFT
            prefixes[k].transitions.append(transition)
            where.apply(transition)
        left = [k for k in left if not places[k].done]
    return [each.transitions for each in prefixes]


def least_ms(run: Callable[[], Any], rounds: int) -> float:
    """Returns the minimum time of several runs, after one that may compile."""
    times = []
    for _ in range(rounds + 1):
        start = perf_counter()
        run()
        times.append(1e3 * (perf_counter() - start))
    return min(times[1:])


def measure(hidden: int, own: Arguments) -> tuple[Any, ...]:
    """Times all ways; returns a row of the table."""
    rng = np.random.default_rng(own.seed)
    sentences = get_workload("transition-parser").sample(rng, own.sentences)
    key = jax.random.key(own.seed)
    params = init_params(key, hidden, own.vocabulary)
    small = init_params(key, 2, own.vocabulary)
    batched = eb.batch(parse)
    batched.warm_up(sentences, params=params)
    batched.warm_up(sentences, params=small)

    def one_by_one() -> list[Any]:
        with jitted_cells():
            return [parse(params, each) for each in sentences]

    waves_ms = least_ms(lambda: batched(params, sentences), own.rounds)
    single_ms = least_ms(one_by_one, min(2, own.rounds))
    rounds_of = eb.batch(score_next)
    rounds_ms = least_ms(lambda: parse_in_rounds(rounds_of, params, sentences), 1)
    host_ms = least_ms(lambda: batched(small, sentences), own.rounds)
    reports = [batched.rollout(params, sentences).report for _ in range(own.rounds)]
    tiny = [batched.rollout(small, sentences).report for _ in range(own.rounds)]
    waves = tiny[0].waves
    own_host = min(each.host_ms / each.waves for each in reports)
    return (
        hidden,
        f"{waves_ms:.1f}",
        f"{single_ms:.0f}",
        f"{rounds_ms:.0f}",
        reports[0].waves,
        f"{waves_ms / reports[0].waves:.2f}",
        f"{host_ms / waves:.3f}",
        f"{own_host:.3f}",
    )


def main(words: Sequence[str] | None = None) -> None:
    """Prints the table."""
    own = parse_arguments(Arguments, __doc__, words)
    print(HEAD)
    with eb.use_tiers("fine"):
        for hidden in map(int, own.hidden.split(",")):
            print(ROW.format(*measure(hidden, own)), flush=True)


if __name__ == "__main__":
    main()
