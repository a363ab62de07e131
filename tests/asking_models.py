"""Models that call `eb.value` while they run, and their unbatched specification."""

import jax
import jax.numpy as jnp
import numpy as np

import edbatch as eb

HIDDEN = 6


@eb.cell
def embed(params, word):
    hidden = jnp.tanh(params["table"][word])
    return hidden, hidden * 0.5


@eb.cell
def join(weights, left, right):
    hidden = jnp.tanh(jnp.concatenate([left[0], right[0]]) @ weights)
    return hidden, hidden * left[1] + right[1]


@eb.cell
def turn(params, x, scale):
    return jnp.sin(x @ params["turn"]) * scale


@eb.cell
def score(params, x):
    return x @ params["score"]


@eb.cell(padded=("parts",))
def total(parts, mask):
    return jnp.where(mask[:, None], parts, 0).sum(0)


@eb.cell
def noisy(x, rng):
    return x + 0.1 * jax.random.normal(rng, x.shape)


def make_params(seed=0, hidden=HIDDEN):
    keys = iter(jax.random.split(jax.random.key(seed), 4))
    return {
        "table": jax.random.normal(next(keys), (12, hidden)),
        "join": jax.random.normal(next(keys), (2 * hidden, hidden)) / hidden**0.5,
        "turn": jax.random.normal(next(keys), (hidden, hidden)) / hidden**0.5,
        "score": jax.random.normal(next(keys), (hidden, 3)) / hidden**0.5,
    }


def shift_reduce(params, words):
    """A parser: a computed score decides whether to join the top two states or push."""
    stack, rest, actions = [], list(words), []
    while rest or len(stack) > 1:
        push = len(stack) < 2
        if not push and rest:
            scores = eb.value(score(params, stack[-1][0]))
            push = bool(scores[0] > scores[1])
        actions.append(int(push))
        if push:
            stack.append(embed(params, rest.pop(0)))
        else:
            right, left = stack.pop(), stack.pop()
            stack.append(join(params["join"], left, right))
    return stack[0][0], actions


def grow_tree(params, seed, deepest=4):
    """A decoder: the number of children of each node is a computed value."""

    def visit(state, depth):
        scores = eb.value(score(params, state))
        arity = int(scores.argmax()) if depth < deepest else 0
        children = [
            visit(turn(params, state, float(k + 1)), depth + 1) for k in range(arity)
        ]
        return total([state, *children]) if children else turn(params, state, 0.5)

    return visit(embed(params, seed % 12)[0], 0)


def wander(params, seed):
    """A random program: which cells run next depends on values and on the seed."""
    rng = np.random.default_rng(seed)
    states = [embed(params, int(rng.integers(12)))[0] for _ in range(3)]
    asked = []
    for _ in range(int(rng.integers(1, 9))):
        pick = int(rng.integers(len(states)))
        states.append(turn(params, states[pick], float(rng.uniform(0.5, 2))))
        if rng.random() < 0.6:
            some = [states[k] for k in rng.integers(len(states), size=2)]
            first, second = eb.value(some)
            if first[0] > second[1]:
                states.append(total(some))
            else:
                states.append(score_and_turn(params, states[-1]))
            asked.append(states[-1])
    return total(states), asked


def score_and_turn(params, state):
    scores = eb.value({"scores": score(params, state), "other": 3})["scores"]
    return turn(params, state, float(np.tanh(scores[0])))


def sample_words(count, seed=0):
    rng = np.random.default_rng(seed)
    return [
        [int(word) for word in rng.integers(12, size=rng.integers(1, 9))]
        for _ in range(count)
    ]


def steps(params, count):
    """Takes `count` steps and asks for the value of each before the next."""
    state = embed(params, count % 12)[0]
    for _ in range(count):
        state = turn(
            params, state, 1.0 if eb.value(score(params, state))[0] > 0 else 0.5
        )
    return state
