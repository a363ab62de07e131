"""Is packing of one matrix per gate as fast as a model packed by hand?

Two models, a tree-LSTM and a bidirectional LSTM tagger, run in three ways on the same
minibatches with the same parameters: as edbatch ships them, with one matrix per gate,
without packing; the same with packing; and written by hand with the concatenated
matrices of all gates. The script fails if results differ. In a clone:

    python experiments/packing_speed.py
    python experiments/packing_speed.py --hidden 16,64 --batch-size 8

Takes two minutes on two cores, most of it to compile. Keep the machine otherwise idle.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.nn import sigmoid

import edbatch as eb
from edbatch.data import Sentence, Tree
from edbatch.measuring import side_by_side
from edbatch.models import bilstm_tagger, get_workload, tree_lstm

from arguments import option, parse_arguments

ROW = "{:14} {:>6} {:>12} {:>10} {:>10} {:>16} {:>16}"
HEAD = ROW.format(
    "workload",
    "hidden",
    "unpacked ms",
    "packed ms",
    "by hand ms",
    "packed/unpacked",
    "packed/by hand",
)

State = tuple[Array, Array]


@dataclass(frozen=True)
class Arguments:
    workloads: str = option("tree-lstm,bilstm-tagger", "Which of the two models.")
    hidden: str = option("32,128,256", "Lengths of the models' states.")
    batch_size: int = option(64, "Instances per minibatch.")
    minibatches: int = option(3, "Minibatches.")
    rounds: int = option(15, "How often everything is timed.")
    seed: int = option(0, "Seed of inputs and parameters.")
    keep_memory: bool = option(False, "Keep the memory that calls free.")


@eb.cell(name="leaf")
def leaf_by_hand(params: Any, word: Array) -> State:
    gates = params["embedding"][word] @ params["leaf"]["W"] + params["leaf"]["b"]
    i, o, u = jnp.split(gates, 3)
    c = sigmoid(i) * jnp.tanh(u)
    return sigmoid(o) * jnp.tanh(c), c


@eb.cell(name="compose")
def compose_by_hand(params: Any, left: State, right: State) -> State:
    h = jnp.concatenate([left[0], right[0]])
    gates = h @ params["compose"]["W"] + params["compose"]["b"]
    i, o, u, f_left, f_right = jnp.split(gates, 5)
    kept = sigmoid(f_left) * left[1] + sigmoid(f_right) * right[1]
    c = sigmoid(i) * jnp.tanh(u) + kept
    return sigmoid(o) * jnp.tanh(c), c


def tree_by_hand(params: Any, tree: Tree) -> dict[str, Any]:
    h, _ = tree.fold(
        lambda node: leaf_by_hand(params, node.word),
        lambda _, children: compose_by_hand(params, *children),
    )
    return {"state": h, "logits": tree_lstm.classify(params, h)}


def pack_tree(params: Any) -> Any:
    compose = params["compose"]
    gates = [*(compose[name] for name in "iou"), *compose["f"]]
    return params | {
        "leaf": {
            "W": jnp.concatenate([params["leaf"][name]["W"] for name in "iou"], axis=1),
            "b": jnp.concatenate([params["leaf"][name]["b"] for name in "iou"]),
        },
        "compose": {
            "W": jnp.block([[gate["U"][k] for gate in gates] for k in range(2)]),
            "b": jnp.concatenate([gate["b"] for gate in gates]),
        },
    }


@eb.cell(name="lstm")
def lstm_by_hand(params: Any, inputs: list[Array], state: State) -> State:
    h, c = state
    gates = jnp.concatenate([*inputs, h]) @ params["W"] + params["b"]
    i, f, o, u = jnp.split(gates, 4)
    c = sigmoid(f) * c + sigmoid(i) * jnp.tanh(u)
    return sigmoid(o) * jnp.tanh(c), c


def tag_by_hand(params: Any, sentence: Sentence) -> list[Any]:
    words = [[bilstm_tagger.embed(params, word)] for word in sentence.words]
    for layer in params["layers"]:
        forward = _run(layer["forward"], words)
        backward = _run(layer["backward"], words[::-1])[::-1]
        words = [list(pair) for pair in zip(forward, backward, strict=True)]
    return [bilstm_tagger.classify(params, *pair) for pair in words]


def _run(params: Any, sequence: Sequence[list[Any]]) -> list[Any]:
    state = bilstm_tagger.start(params)
    found = []
    for inputs in sequence:
        state = lstm_by_hand(params, inputs, state)
        found.append(state[0])
    return found


def pack_tagger(params: Any) -> Any:
    def pack(direction: Any) -> Any:
        gates = [direction[name] for name in "ifou"]
        rows = [[gate[name] for gate in gates] for name in "WU"]
        packed = {
            "W": jnp.block(rows),
            "b": jnp.concatenate([gate["b"] for gate in gates]),
        }
        return {"h": direction["h"], "c": direction["c"]} | packed

    layers = [{name: pack(each[name]) for name in each} for each in params["layers"]]
    return params | {"layers": layers}


# The model written by hand, and the conversion of the parameters to its form.
BY_HAND: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any], Any]]] = {
    "tree-lstm": (tree_by_hand, pack_tree),
    "bilstm-tagger": (tag_by_hand, pack_tagger),
}
UNPACKED = eb.Compiler(packing="never")


def measure(name: str, hidden: int, arguments: Arguments) -> np.ndarray:
    """Times the three ways; returns milliseconds, [3, minibatches, rounds]."""
    workload = get_workload(name)
    params = workload.init_params(jax.random.key(arguments.seed), hidden)
    model_by_hand, pack = BY_HAND[name]
    hand_params = jax.tree.map(jnp.asarray, pack(params))
    policy = f"zoo:{name}"
    ways = [
        (eb.batch(workload.model, policy, params=params, compiler=UNPACKED), params),
        (eb.batch(workload.model, policy, params=params), params),
        (
            eb.batch(model_by_hand, policy, params=hand_params, compiler=UNPACKED),
            hand_params,
        ),
    ]
    rng = np.random.default_rng(arguments.seed)
    size, times = arguments.batch_size, []
    for _ in range(arguments.minibatches):
        instances = workload.sample(rng, size)
        calls = [
            partial(batched.apply, values, batched.plan(instances))
            for batched, values in ways
        ]
        first, *others = (jax.tree.leaves(call()) for call in calls)
        for other in others:
            for a, b in zip(first, other, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
        times.append(side_by_side(calls, arguments.rounds))
    return np.stack(times, axis=1)


def line(name: str, hidden: int, times: np.ndarray) -> str:
    unpacked, packed, by_hand = np.median(times, axis=(1, 2))
    ratios = [np.median(times[1] / times[k]) for k in (0, 2)]
    return ROW.format(
        name,
        hidden,
        *(f"{each:.2f}" for each in (unpacked, packed, by_hand)),
        *(f"{each:.3f}" for each in ratios),
    )


def main(arguments: Arguments) -> None:
    if arguments.keep_memory:
        eb.keep_memory()
    print(HEAD)
    for name in arguments.workloads.split(","):
        for hidden in map(int, arguments.hidden.split(",")):
            times = measure(name.strip(), hidden, arguments)
            print(line(name.strip(), hidden, times), flush=True)


if __name__ == "__main__":
    main(parse_arguments(Arguments, __doc__))
