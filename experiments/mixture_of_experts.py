"""How much faster is a batched mixture of many experts than one call per input?

After the benchmark of Suarez and Zhu: each input passes through one expert, two layers
of 256 by 256 with a nonlinearity, chosen by the input. The time of a minibatch in one
compiled program ("batched") is compared with one call of the compiled expert per input
("calls"), for 1 to 10,000 experts, whose parameters are a list of pytrees or one array
per layer that the cell indexes. With 10,000 experts there is one layer: two would take
10 GB, including the copy that stacks a list. Both sides get arrays that are on the
device. The batched program is the fine one; the coarse program, which runs until the
fine one is compiled, takes three times as long.

The output also shows lower limits of the time. The first table is the speed at which
this machine multiplies two large matrices and reads a large array. "limit" is the time
to do the experts' multiplications at this speed, or to read the parameters of the
chosen experts, whichever is longer. "theirs" is the ratio that Suarez and Zhu report,
on a GPU. In a clone:

    python experiments/mixture_of_experts.py
    python experiments/mixture_of_experts.py --experts 1 10 --forms list --rounds 3
    python experiments/mixture_of_experts.py --experts 100 1000 --devices 2

Takes ten minutes on two cores and 12 GB for 10,000 experts. Keep the machine otherwise
idle.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import edbatch as eb

from arguments import option, parse_arguments

LARGE = 10_000  # from this number on, experts have one layer
FORMS = ("list", "indexed")
THEIRS = {1: 1190.0, 10: 699.0, 100: 86.0, 1000: 9.4, 10_000: 1.0}
MATRIX = 2048  # rows of the matrices that measure the speed of products
READ = 2**28  # bytes of the array that measures the memory bandwidth


@dataclass(frozen=True)
class Arguments:
    experts: tuple[str, ...] = option(("1", "10", "100", "1000", "10000"), "Experts.")
    forms: tuple[str, ...] = option(FORMS, "Forms of the parameters.")
    width: int = option(256, "Length of inputs and outputs.")
    batch_size: int = option(10_000, "Inputs per minibatch.")
    devices: int = option(1, "CPU devices, over which the inputs are split.")
    rounds: int = option(5, "How often each program runs.")
    seed: int = option(0, "Seed of inputs and parameters.")


@eb.cell
def expert(layers: Any, x: Any) -> Any:
    """Applies one expert, given its own layers."""
    for weights in layers:
        x = jnp.tanh(x @ weights)
    return x


@eb.cell
def indexed_expert(layers: Any, k: Any, x: Any) -> Any:
    """Applies expert `k`, given the layers of all experts."""
    for weights in layers:
        x = jnp.tanh(x @ weights[k])
    return x


def list_model(params: Any, instance: Any) -> Any:
    """The mixture with a list of experts."""
    k, x = instance
    return expert(params["experts"][k], x)


def indexed_model(params: Any, instance: Any) -> Any:
    """The mixture with one array per layer."""
    k, x = instance
    return indexed_expert(params["layers"], k, x)


@dataclass(frozen=True)
class Peak:
    """The peak speed of a machine.

    Attributes:
        flops: Floating-point operations per second in a product of large matrices.
        bandwidth: Bytes per second in the sum of a large array.
    """

    flops: float
    bandwidth: float


@dataclass(frozen=True)
class Result:
    """Measurements for one form of the parameters and number of experts.

    Attributes:
        form: The form of the parameters.
        experts: Number of experts.
        layers: Layers of each expert.
        record: Seconds to record the inputs one by one, the second time.
        plan: Seconds to plan the recordings, the second time and not from the cache.
        compile: Seconds of the first run.
        batched: Seconds of a run, the median.
        calls: Seconds to call the expert once for each input, the median.
        flops: Floating-point operations of the products.
        read: Bytes of the parameters of the chosen experts.
        error: The largest difference between the results of the two ways.
    """

    form: str
    experts: int
    layers: int
    record: float
    plan: float
    compile: float
    batched: float
    calls: float
    flops: float
    read: float
    error: float

    @property
    def ratio(self) -> float:
        """Speedup of the batched program."""
        return self.calls / self.batched

    def limit(self, peak: Peak) -> float:
        """Returns the minimum seconds for the arithmetic or to read the parameters."""
        return max(self.flops / peak.flops, self.read / peak.bandwidth)


def measure_peak(rounds: int) -> Peak:
    """Measures the peak speed of this machine, the best of several rounds."""
    matrix = jnp.ones((MATRIX, MATRIX), jnp.float32)
    array = jnp.ones(READ // 4, jnp.float32)
    multiply, add = jax.jit(lambda x: x @ x), jax.jit(jnp.sum)
    _timed(lambda: (multiply(matrix), add(array)))  # compiles
    times = [
        (_timed(lambda: multiply(matrix))[1], _timed(lambda: add(array))[1])
        for _ in range(rounds)
    ]
    multiplied, read = (min(each) for each in zip(*times, strict=True))
    return Peak(2 * MATRIX**3 / multiplied, READ / read)


def make_params(form: str, experts: int, layers: int, arguments: Arguments) -> Any:
    """Samples parameters of a form."""
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
    batched.plan(instances)  # discovers the types
    recordings, recorded = _timed(lambda: batched.record_all(instances))
    if arguments.devices == 1:
        function, own = batched, params
        plan, planned = _timed(lambda: jax.device_put(batched.plan(recordings)))
    else:
        function = batched.sharded()
        own = function.replicate(params)
        plan, planned = _timed(lambda: function.plan(recordings))
    found, compiled = _timed(lambda: function.apply(own, plan))
    times = [
        _timed(lambda: function.apply(own, plan))[1] for _ in range(arguments.rounds)
    ]
    call_all = _one_by_one(form, params, instances)
    expected, _ = _timed(call_all)
    calls = [_timed(call_all)[1] for _ in range(min(arguments.rounds, 3))]
    matrix = arguments.width**2 * layers
    return Result(
        form,
        experts,
        layers,
        record=recorded,
        plan=planned,
        compile=compiled,
        batched=float(np.median(times)),
        calls=float(np.median(calls)),
        flops=2.0 * matrix * arguments.batch_size,
        read=4.0 * matrix * len(set(chosen)),
        error=float(np.abs(np.asarray(found) - np.stack(expected)).max()),
    )


def _one_by_one(form: str, params: Any, instances: Any) -> Callable[[], list[Any]]:
    """Makes a function that calls the compiled expert for each input, on the device."""
    inputs = [jax.device_put(x) for _, x in instances]
    if form == "list":
        call = jax.jit(expert.function)
        own = [params["experts"][k] for k, _ in instances]
        return lambda: [call(layers, x) for layers, x in zip(own, inputs, strict=True)]
    choose = jax.jit(indexed_expert.function)
    chosen = [jax.device_put(np.int32(k)) for k, _ in instances]
    layers = params["layers"]
    return lambda: [choose(layers, k, x) for k, x in zip(chosen, inputs, strict=True)]


def _timed(run: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    found = run()
    jax.block_until_ready(jax.tree.leaves(found))
    return found, time.perf_counter() - start


HEADER = (
    "| form | experts | layers | record s | plan s | compile s | batched ms | calls ms"
    " | ratio | theirs | GFLOP/s | GB/s | limit ms | ratio at limit | max error |\n"
    + "| --- " * 15
    + "|"
)


def row(found: Result, peak: Peak) -> str:
    """Formats a result as a row of a table."""
    limit = found.limit(peak)
    return (
        f"| {found.form} | {found.experts:,} | {found.layers} | {found.record:.2f} |"
        f" {found.plan:.2f} | {found.compile:.1f} | {1e3 * found.batched:.1f} |"
        f" {1e3 * found.calls:.0f} | {found.ratio:.1f} |"
        f" {THEIRS.get(found.experts, math.nan):g} |"
        f" {found.flops / found.batched / 1e9:.0f} |"
        f" {found.read / found.batched / 1e9:.1f} | {1e3 * limit:.1f} |"
        f" {found.calls / limit:.1f} | {found.error:.0e} |"
    )


def main(arguments: Arguments) -> list[Result]:
    """Makes the measurements and prints two tables."""
    if arguments.devices > 1:
        eb.use_cpu_devices(arguments.devices)
    peak = measure_peak(arguments.rounds)
    print("| peak GFLOP/s | peak GB/s |\n| --- | --- |")
    print(f"| {peak.flops / 1e9:.0f} | {peak.bandwidth / 1e9:.1f} |\n")
    print(HEADER, flush=True)
    found = []
    with eb.use_tiers("fine"):
        for form in arguments.forms:
            for experts in map(int, arguments.experts):
                found.append(measure(form, experts, arguments))
                print(row(found[-1], peak), flush=True)
    return found


if __name__ == "__main__":
    main(parse_arguments(Arguments, __doc__))
