"""How much is there to trace, lower and compile, by model, pass and tier?

Prints the number of jaxpr equations, with inner functions counted once per call
(``all``) and once each (``distinct``); the bytes of the StableHLO text; and seconds of
this process's CPU time, which other processes affect little. In a clone:

    python experiments/compile_sizes.py
    python experiments/compile_sizes.py --models stack-48 --tiers coarse
"""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

import edbatch as eb
from edbatch.cell.jaxpr import body_of, inner_bodies
from edbatch.compilation.tier import compiler_options
from edbatch.measuring import loss_of
from edbatch.models import get_workload

from arguments import option, parse_arguments

PASSES = ("forward", "gradient")
ROW = "{:22} {:8} {:6} {:>6} {:>7} {:>8} {:>8} {:>8} {:>8} {:>8}"
HEAD = ROW.format(
    "model", "pass", "tier", "loops", "all", "distinct", "kbytes", "trace s", "lower s",
    "XLA s",
)  # fmt: skip


@dataclass(frozen=True)
class Arguments:
    models: str = option(
        "tree-lstm,message-passing,neural-module-network",
        "Ready workloads, message-passing, stack-N (layers) or experts-N.",
    )
    passes: str = option("forward,gradient", "Which to compile.")
    tiers: str = option("coarse,fine", "Which programs.")
    hidden: int = option(64, "Length of the models' states; 32 for message-passing.")
    batch_size: int = option(64, "Instances per minibatch.")
    compile: bool = option(True, "Have XLA compile, too.")
    inside: bool = option(False, "Measure in this process.")


@eb.cell
def layer(params: Any, state: Any) -> Any:
    """Computes a gated layer with four parameter arrays."""
    gate = jax.nn.sigmoid(state @ params["gate"] + params["gate_bias"])
    return gate * state + jax.numpy.tanh(state @ params["weight"] + params["bias"])


def make_stack(layers: int, hidden: int) -> Any:
    rng = np.random.default_rng(0)

    def array(*shape: int) -> Any:
        return jax.numpy.asarray(0.1 * rng.normal(size=shape), "float32")

    return [
        {
            "gate": array(hidden, hidden),
            "weight": array(hidden, hidden),
            "gate_bias": array(hidden),
            "bias": array(hidden),
        }
        for _ in range(layers)
    ]


def stack(params: Any, instance: Any) -> Any:
    state = instance
    for own in params:
        state = layer(own, state)
    return state


def experts(params: Any, instance: Any) -> Any:
    expert, state = instance
    return layer(params[expert], state)


def load(name: str, arguments: Arguments) -> tuple[Any, Any, list[Any]]:
    """Returns a model, its parameters and a minibatch."""
    rng = np.random.default_rng(0)
    count, hidden = arguments.batch_size, arguments.hidden
    kind, _, number = name.partition("-")
    states = list(rng.normal(size=(count, hidden)).astype(np.float32))
    if name == "message-passing":
        sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
        import message_passing as network

        params = network.make_params(32)
        return network.message_passing, params, network.sample_molecules(0, count)
    if kind == "stack":
        return stack, make_stack(int(number), hidden), states
    if kind == "experts":
        chosen = [k % int(number) for k in range(count)]
        params = make_stack(int(number), hidden)
        return experts, params, list(zip(chosen, states, strict=True))
    workload = get_workload(name)
    params = workload.init_params(jax.random.key(0), hidden)
    return workload.model, params, workload.sample(rng, count)


def count(body: Any, known: set[int] | None) -> int:
    """Counts equations, also of inner functions; each function once given `known`."""
    total = len(body.equations)
    for eqn in body.equations:
        for inner in inner_bodies(eqn):
            key = id(inner.equations)
            if known is not None:
                if key in known:
                    continue
                known.add(key)
            total += count(inner, known)
    return total


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    start = time.process_time()
    found = call()
    return found, time.process_time() - start


def measure(name: str, way: str, tier: str, arguments: Arguments) -> str:
    """Compiles one program in this process."""
    model, params, instances = load(name, arguments)
    batched = eb.batch(model, params=params)
    plan = batched.plan(instances).in_tier(tier)
    run = batched.apply if way == "forward" else jax.grad(loss_of(batched))
    jitted = jax.jit(run, compiler_options=compiler_options(plan) or None)
    traced, trace_s = timed(lambda: jitted.trace(params, plan))
    lowered, lower_s = timed(traced.lower)
    compile_s = timed(lowered.compile)[1] if arguments.compile else 0.0
    body = body_of(traced.jaxpr)
    return ROW.format(
        name,
        way,
        tier,
        len(plan.shape.program.loops),
        count(body, None),
        count(body, set()),
        len(lowered.as_text()) // 1000,
        f"{trace_s:.2f}",
        f"{lower_s:.2f}",
        f"{compile_s:.2f}",
    )


def main(arguments: Arguments) -> None:
    for way in arguments.passes.split(","):
        if way not in PASSES:
            raise SystemExit(f"--passes: {' or '.join(PASSES)}, but this is {way!r}")
    if not arguments.inside:
        print(HEAD, flush=True)
    for name in arguments.models.split(","):
        for way in arguments.passes.split(","):
            for tier in arguments.tiers.split(","):
                if arguments.inside:
                    print(measure(name, way, tier, arguments), flush=True)
                    continue
                words = [sys.executable, __file__, "--inside", "--models", name]
                words += ["--passes", way, "--tiers", tier]
                words += ["--hidden", str(arguments.hidden)]
                words += ["--batch-size", str(arguments.batch_size)]
                words += [] if arguments.compile else ["--no-compile"]
                subprocess.run(words, check=True)


if __name__ == "__main__":
    main(parse_arguments(Arguments, __doc__))
