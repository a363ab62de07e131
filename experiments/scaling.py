"""How much faster do two CPU devices train than one?

Times value and gradient of a tree-LSTM on minibatches of sampled parse trees: on one
device, whose operations use all cores, and with `batched.sharded()` on several. The
number of devices is fixed when JAX starts, so each number is measured in separate
processes, alternately. The script fails if losses differ. In a clone:

    python experiments/scaling.py
    python experiments/scaling.py --measure forward
    python experiments/scaling.py --measure training --minibatches 20 --rounds 5
    python experiments/scaling.py --hidden 16 --batch-size 8 --repeats 1

`training` is an epoch of `edbatch.training.Trainer`, whose loader plans minibatches in
a thread, and `inference` a pass over the data with such a loader. The other measures
are of steps alone, with plans made beforehand: plans of several devices are on the
devices, plans of one device are in host memory.

Takes ten minutes on two cores, most of it to compile. Keep the machine otherwise idle.
"""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import edbatch as eb
from edbatch.measuring import run_all, side_by_side
from edbatch.models import get_workload
from edbatch.training import Trainer

from arguments import option, parse_arguments

ROW = "{:14} {:>6} {:>8} {:>10} {:>12} {:>10}"
LOADED = ("training", "inference")  # these plan minibatches with a loader as they run
HEAD = ROW.format("workload", "hidden", "devices", "ms", "nodes/s", "against 1")


@dataclass(frozen=True)
class Arguments:
    workload: str = option("tree-lstm", "The model.")
    hidden: str = option("64,128,256", "Lengths of the model's states.")
    devices: str = option("1,2", "Numbers of devices; the first is compared with.")
    batch_size: int = option(64, "Instances per minibatch.")
    minibatches: int = option(3, "Minibatches.")
    rounds: int = option(15, "How often each minibatch is timed in one process.")
    repeats: int = option(3, "How many processes each number of devices gets.")
    measure: str = option(
        "gradient",
        "forward; gradient; rows, the gradient with the words' table as rows; training;"
        " or inference.",
    )
    seed: int = option(0, "Seed of inputs and parameters.")
    here: bool = option(False, "Measure in this process and print JSON.")


def measure(arguments: Arguments) -> dict[str, Any]:
    """Measures on the devices of this process."""
    eb.use_tiers("fine")
    workload = get_workload(arguments.workload)
    key = jax.random.key(arguments.seed)
    params = workload.init_params(key, int(arguments.hidden))
    batched = eb.batch(workload.model, f"zoo:{arguments.workload}", params=params)
    function: eb.Batched | eb.Sharded = batched
    if jax.device_count() > 1:
        function = batched.sharded()
        params = function.replicate(params)

    def loss(params: Any, plan: Any) -> Any:
        leaves = jax.tree.leaves(function.apply(params, plan))
        return sum(jnp.square(each).mean() for each in leaves)

    step = eb.jit(_transform(arguments.measure)(loss), tiers="fine")
    rng = np.random.default_rng(arguments.seed)
    minibatches = [
        function.record_all(workload.sample(rng, arguments.batch_size))
        for _ in range(arguments.minibatches)
    ]
    plans = [function.plan(each) for each in minibatches]
    losses = [float(jax.tree.leaves(step(params, each))[0]) for each in plans]
    calls = [partial(step, params, each) for each in plans]
    if arguments.measure in LOADED:
        recordings = list(itertools.chain.from_iterable(minibatches))
        loader = eb.Loader(function, recordings, arguments.batch_size)
        calls = [partial(_run_epoch, loader, partial(step, params))]
        if arguments.measure == "training":
            trainer = Trainer(
                lambda params, plan, _: loss(params, plan), optax.sgd(1e-3), params
            )
            calls = [partial(_train_epoch, loader, trainer)]
    times = side_by_side(calls, arguments.rounds)
    return {
        "devices": jax.device_count(),
        "nodes": sum(each.report.nodes for each in plans),
        "ms": float(np.median(times, axis=1).sum()),
        "losses": losses,
    }


def _run_epoch(loader: eb.Loader, step: Callable[[Any], Any]) -> Any:
    return run_all(step, (each.plan for each in loader))


def _train_epoch(loader: eb.Loader, trainer: Trainer) -> None:
    for each in loader:
        trainer.step(each)
    trainer.finish()


def _transform(measure: str) -> Callable[..., Any]:
    """Returns the transformation of the loss that is measured."""
    known: dict[str, Callable[..., Any]] = {
        "forward": lambda loss: loss,
        "gradient": jax.value_and_grad,
        "rows": partial(eb.sparse.value_and_grad, tables="embedding"),
        "training": lambda loss: loss,
        "inference": lambda loss: loss,
    }
    if measure not in known:
        raise SystemExit(f"--measure is one of {', '.join(known)}, not {measure}")
    return known[measure]


def measure_elsewhere(devices: int, arguments: Arguments) -> dict[str, Any]:
    """Measures in a separate process with `devices` CPU devices."""
    words = [
        f"--{name.replace('_', '-')}={value}"
        for name, value in asdict(replace(arguments, devices=str(devices))).items()
        if name != "here"
    ]
    environment = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
    done = subprocess.run(
        [sys.executable, __file__, *words, "--here"],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["devices"] == devices, found
    return found


def compare(arguments: Arguments) -> list[list[dict[str, Any]]]:
    """Measures all numbers of devices at one size; returns [devices][repeats]."""
    counts = [int(each) for each in arguments.devices.split(",")]
    rounds = [
        [measure_elsewhere(each, arguments) for each in counts]
        for _ in range(arguments.repeats)
    ]
    for found in rounds:
        for each in found:
            np.testing.assert_allclose(
                each["losses"], rounds[0][0]["losses"], rtol=1e-4
            )
    return [list(each) for each in zip(*rounds, strict=True)]


def lines(name: str, hidden: str, found: list[list[dict[str, Any]]]) -> list[str]:
    ms = np.array([[each["ms"] for each in own] for own in found])
    speed = found[0][0]["nodes"] / (1e-3 * np.median(ms, axis=1))
    ratios = np.median(ms[0] / ms, axis=1)
    return [
        ROW.format(
            name,
            hidden,
            own[0]["devices"],
            f"{np.median(ms[k]):.1f}",
            f"{speed[k]:,.0f}",
            f"{ratios[k]:.2f}",
        )
        for k, own in enumerate(found)
    ]


def main(arguments: Arguments) -> None:
    if arguments.here:
        print(json.dumps(measure(arguments)))
        return
    print(HEAD)
    for hidden in arguments.hidden.split(","):
        found = compare(replace(arguments, hidden=hidden))
        print("\n".join(lines(arguments.workload, hidden, found)), flush=True)


if __name__ == "__main__":
    main(parse_arguments(Arguments, __doc__))
