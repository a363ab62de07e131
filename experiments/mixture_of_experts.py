"""How much faster does a minibatch run whose rows belong to one of many experts?

After the benchmark of Suarez and Zhu: each input passes through one expert, two layers
of 256 by 256 with a nonlinearity, chosen by the input. The time of a minibatch in one
compiled program ("batched") is compared with one call of the compiled expert per input
("calls"), for 1 to 10,000 experts, whose parameters are a list of trees or one array
per layer that the cell indexes. 10,000 experts have one layer: two would take 10 GB,
with the copy that stacks a list. In a clone:

    python experiments/mixture_of_experts.py
    python experiments/mixture_of_experts.py --experts 1 10 --forms list --rounds 3

Takes ten minutes on two cores and 12 GB for 10,000 experts. Keep the machine otherwise
idle.
"""

import time
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import edbatch as eb

from arguments import option, parse_arguments

LARGE = 10_000  # experts that have one layer
FORMS = ("list", "indexed")


@dataclass(frozen=True)
class Arguments:
    experts: tuple[str, ...] = option(("1", "10", "100", "1000", "10000"), "Experts.")
    forms: tuple[str, ...] = option(FORMS, "Forms of the parameters.")
    width: int = option(256, "Length of inputs and outputs.")
    batch_size: int = option(10_000, "Inputs per minibatch.")
    rounds: int = option(5, "How often each program runs.")
    seed: int = option(0, "Seed of inputs and parameters.")


@eb.cell
def expert(layers: Any, x: Any) -> Any:
    """One expert, of its own layers."""
    for weights in layers:
        x = jnp.tanh(x @ weights)
    return x


@eb.cell
def indexed_expert(layers: Any, k: Any, x: Any) -> Any:
    """One expert, of layers of all experts."""
    for weights in layers:
        x = jnp.tanh(x @ weights[k])
    return x


def list_model(params: Any, instance: Any) -> Any:
    """A mixture with a list of experts."""
    k, x = instance
    return expert(params["experts"][k], x)


def indexed_model(params: Any, instance: Any) -> Any:
    """A mixture with one array per layer."""
    k, x = instance
    return indexed_expert(params["layers"], k, x)


@dataclass(frozen=True)
class Result:
    """What was measured of one form and number of experts.

    Attributes:
        form: The form of the parameters.
        experts: Number of experts.
        layers: Layers of each.
        record: Seconds to record the inputs one by one, the second time.
        plan: Seconds to plan the recordings, the second time and not from the cache.
        compile: Seconds of the first run.
        batched: Seconds of a run, the median.
        calls: Seconds of one call per input, the median.
        error: The largest difference between the two.
    """

    form: str
    experts: int
    layers: int
    record: float
    plan: float
    compile: float
    batched: float
    calls: float
    error: float

    @property
    def ratio(self) -> float:
        """How much faster the batched program is."""
        return self.calls / self.batched


def make_params(form: str, experts: int, layers: int, arguments: Arguments) -> Any:
    """Random parameters of a form."""
    keys = jax.random.split(jax.random.key(arguments.seed), layers)
    shape = (experts, arguments.width, arguments.width)
    scale = arguments.width**-0.5
    stacked = [scale * jax.random.normal(key, shape) for key in keys]
    if form == "indexed":
        return {"layers": stacked}
    host = [np.asarray(each) for each in stacked]
    return {
        "experts": [[jnp.asarray(each[k]) for each in host] for k in range(experts)]
    }


def measure(form: str, experts: int, arguments: Arguments) -> Result:
    """Measures one form and number of experts."""
    layers = 1 if experts >= LARGE else 2
    params = make_params(form, experts, layers, arguments)
    rng = np.random.default_rng(arguments.seed)
    chosen = rng.integers(0, experts, arguments.batch_size).tolist()
    inputs = rng.normal(size=(arguments.batch_size, arguments.width))
    instances = list(zip(chosen, inputs.astype(np.float32), strict=True))
    model = list_model if form == "list" else indexed_model
    batched = eb.batch(model, params=params, cache_bytes=0)
    batched.plan(instances)  # meets the types
    recordings, recorded = _timed(lambda: batched.record_all(instances))
    plan, planned = _timed(lambda: batched.plan(recordings))
    plan = jax.device_put(plan)
    found, compiled = _timed(lambda: batched.apply(params, plan))
    times = [
        _timed(lambda: batched.apply(params, plan))[1] for _ in range(arguments.rounds)
    ]
    call = jax.jit(expert.function if form == "list" else indexed_expert.function)

    def one_by_one() -> list[Any]:
        if form == "list":
            return [call(params["experts"][k], x) for k, x in instances]
        return [call(params["layers"], k, x) for k, x in instances]

    expected, _ = _timed(one_by_one)
    calls = [_timed(one_by_one)[1] for _ in range(min(arguments.rounds, 3))]
    return Result(
        form,
        experts,
        layers,
        record=recorded,
        plan=planned,
        compile=compiled,
        batched=float(np.median(times)),
        calls=float(np.median(calls)),
        error=float(np.abs(np.asarray(found) - np.stack(expected)).max()),
    )


def _timed(run: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    found = run()
    jax.block_until_ready(jax.tree.leaves(found))
    return found, time.perf_counter() - start


HEADER = (
    "| form | experts | layers | record s | plan s | compile s | batched ms | calls ms"
    " | ratio | max error |\n" + "| --- " * 10 + "|"
)


def row(found: Result) -> str:
    """A result as a row of a table."""
    return (
        f"| {found.form} | {found.experts:,} | {found.layers} | {found.record:.2f} |"
        f" {found.plan:.2f} | {found.compile:.1f} | {1e3 * found.batched:.1f} |"
        f" {1e3 * found.calls:.0f} | {found.ratio:.1f} | {found.error:.0e} |"
    )


def main(arguments: Arguments) -> list[Result]:
    """Measures and prints a table."""
    print(HEADER, flush=True)
    found = []
    for form in arguments.forms:
        for experts in map(int, arguments.experts):
            found.append(measure(form, experts, arguments))
            print(row(found[-1]), flush=True)
    return found


if __name__ == "__main__":
    main(parse_arguments(Arguments, __doc__))
