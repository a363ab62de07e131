"""Does a training step slow down with the vocabulary?

Times a tree-LSTM's value and gradient with a small and a large embedding, alternately,
on the same trees. The gradient of an embedding is as large as the embedding: XLA clears
it and adds the rows of the words. This gradient is also timed alone; the remaining
difference is the overhead of batching. In a clone:

    python experiments/vocabulary_cost.py
    python experiments/vocabulary_cost.py --large 200000 --hidden 64

Takes a minute on two cores, most of it to compile. Keep the machine otherwise idle.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import edbatch as eb
from edbatch.data import Tree
from edbatch.measuring import loss_of, side_by_side
from edbatch.models import get_workload

from arguments import option, parse_arguments


@dataclass(frozen=True)
class Arguments:
    small: int = option(1_000, "Words of the small table.")
    large: int = option(50_000, "Words of the large table.")
    hidden: int = option(256, "Length of states and word vectors.")
    batch_size: int = option(64, "Instances per minibatch.")
    minibatches: int = option(3, "Minibatches.")
    rounds: int = option(15, "How often everything is timed.")
    seed: int = option(0, "Seed of inputs and parameters.")


def spread(tree: Tree, factor: int) -> Tree:
    """Returns the tree with its words spread over a larger embedding."""

    def scaled(node: Tree, children: Sequence[Tree] = ()) -> Tree:
        word = node.word
        return Tree(
            node.label,
            word * factor if isinstance(word, int) else word,
            tuple(children),
        )

    found: Tree = tree.fold(scaled, scaled)
    return found


@jax.jit
def dense_gradient(table: Array, words: Array, rows: Array) -> Array:
    """Computes only the gradient of an embedding."""
    return jnp.zeros_like(table).at[words].add(rows)


def measure(arguments: Arguments) -> np.ndarray:
    """Returns milliseconds, [4, minibatches, rounds].

    The four are the step with the small and with the large embedding, then the gradient
    of the small and of the large embedding alone.
    """
    key = jax.random.key(arguments.seed)
    rng = np.random.default_rng(arguments.seed)
    sizes = (arguments.small, arguments.large)
    workload = get_workload("tree-lstm", vocabulary_size=arguments.small)
    params = [
        get_workload("tree-lstm", vocabulary_size=size).init_params(
            key, arguments.hidden
        )
        for size in sizes
    ]
    ways = [
        eb.batch(workload.model, "zoo:tree-lstm", params=own, cache_bytes=0)
        for own in params
    ]
    steps = [jax.jit(jax.value_and_grad(loss_of(each))) for each in ways]
    times = []
    for _ in range(arguments.minibatches):
        trees = workload.sample(rng, arguments.batch_size)
        # The words are spread over the whole large embedding.
        factor = arguments.large // arguments.small
        both = [trees, [spread(each, factor) for each in trees]]
        words = [
            jnp.array([word for tree in own for word in tree.words()]) for own in both
        ]
        rows = jnp.ones((len(words[0]), arguments.hidden))
        calls = [
            partial(step, own, way.plan(of))
            for step, own, way, of in zip(steps, params, ways, both, strict=True)
        ]
        calls += [
            partial(dense_gradient, own["embedding"], some, rows)
            for own, some in zip(params, words, strict=True)
        ]
        times.append(side_by_side(calls, arguments.rounds))
    return np.stack(times, axis=1)


def report(arguments: Arguments, times: np.ndarray) -> list[str]:
    small, large, small_table, large_table = np.median(times, axis=(1, 2))
    growth = ((large - large_table) / (small - small_table) - 1) * 100
    row = "{:>10} {:>10} {:>10} {:>16}"
    return [
        row.format("words", "step ms", "table ms", "the rest ms"),
        *(
            row.format(words, f"{step:.2f}", f"{table:.2f}", f"{step - table:.2f}")
            for words, step, table in (
                (arguments.small, small, small_table),
                (arguments.large, large, large_table),
            )
        ),
        f"apart from the table's own gradient, a step takes {growth:+.0f} % with the"
        " large one",
    ]


def main(arguments: Arguments) -> None:
    print("\n".join(report(arguments, measure(arguments))))


if __name__ == "__main__":
    main(parse_arguments(Arguments, __doc__))
