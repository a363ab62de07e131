"""Programs compiled for a GPU on a machine without one, taken apart.

XLA compiles for a description of a device (`DEVICES`) with JAX's plugin for CUDA, the
extra ``gpu-aot``; no driver is asked. What it makes is a tree of *thunks*: kernels,
copies, loops and conditionals, some inside a *command buffer* (a CUDA graph), where
the device itself decides whether a loop goes on. Outside of one the host waits for
each condition, unless it knows the number of iterations: a *host round trip*.

How often each loop iterates is found by running the same jaxpr, equation by equation,
on the CPU (`loop_counts`).
"""

import os
import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from loop_counts import Iterations

# Of both: threads per warp, and limits of a block and a grid.
_LIMITS = """
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  shared_memory_per_block: 49152
  runtime_version: "12.9.0" driver_version: "12.9.0"
  compile_time_toolkit_version: "12.9.0"
"""


def _describe(name: str, own: str) -> str:
    """Returns XLA's description of a device, a `GpuTargetConfigProto` as text."""
    return (
        f"gpu_device_info {{ {_LIMITS} {own} }}\n"
        'platform_name: "CUDA"\n'
        "dnn_version_info { major: 9 minor: 10 patch: 0 }\n"
        f'device_description_str: "{name}"\n'
    )


DEVICES = {
    "H200": _describe(
        "NVIDIA H200",
        "cuda_compute_capability { major: 9 } core_count: 132 fpus_per_core: 128"
        " clock_rate_ghz: 1.98 memory_bandwidth: 4800000000000"
        " l2_cache_size: 52428800 device_memory_size: 151397597184"
        " shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448",
    ),
    "A100": _describe(
        "NVIDIA A100-SXM4-80GB",
        "cuda_compute_capability { major: 8 } core_count: 108 fpus_per_core: 64"
        " clock_rate_ghz: 1.41 memory_bandwidth: 2039040000000"
        " l2_cache_size: 41943040 device_memory_size: 85100068864"
        " shared_memory_per_core: 167936 shared_memory_per_block_optin: 166912",
    ),
}

COMMANDS = "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,CONDITIONAL"


@dataclass
class Thunk:
    """A step of a compiled program.

    Attributes:
        kind: Its kind in XLA, as ``"kWhile"``.
        name: Name of its kernel, if it is one.
        number: Its number in the module.
        parts: Its condition, body or branches; each a list of thunks.
    """

    kind: str
    name: str
    number: int
    parts: list[list["Thunk"]] = field(default_factory=list)

    @property
    def is_control(self) -> bool:
        """Whether it is a loop or a conditional."""
        return self.kind in ("kWhile", "kConditional")


_THUNK = re.compile(r"^( *)(\d+): (k\w+) +\[[^\]]*\] *(\S*)")
_PART = re.compile(r"^ *(condition|body|branch_\d+|true_branch|false_branch):$")


def read_thunks(text: str) -> list[Thunk]:
    """Reads a sequence of thunks from what XLA prints of it.

    Args:
        text: The text.

    Returns:
        The outermost thunks.

    Example:
        >>> [loop] = read_thunks('''
        ... 003: kWhile [source | sink]
        ... condition:
        ...     004: kKernel [source | sink] less grid: [1, 1, 1]
        ...   body:
        ...     005: kKernel [source | sink] add grid: [1, 1, 1]
        ... ''')
        >>> loop.kind, [[each.name for each in part] for part in loop.parts]
        ('kWhile', [['less'], ['add']])
    """
    top: list[Thunk] = []
    open_: list[tuple[int, list[Thunk]]] = [(-1, top)]  # column, where to put more
    last: tuple[int, Thunk] | None = None
    owners: list[tuple[int, Thunk]] = []  # loops and conditionals, outermost first
    for line in text.splitlines():
        found, part = _THUNK.match(line), _PART.match(line)
        if part:
            column = len(line) - len(line.lstrip())
            # "condition:" follows its loop and is indented wrongly.
            if part[1] == "condition":
                assert last is not None
                owner_column, owner = last
            else:
                owner_column, owner = next(
                    each for each in reversed(owners) if each[0] < column
                )
            owner.parts.append([])
            open_ = [each for each in open_ if each[0] < owner_column + 1]
            open_.append((owner_column + 1, owner.parts[-1]))
        elif found:
            column = len(found[1])
            while open_[-1][0] > column:
                open_.pop()
            if last and column > last[0] and not last[1].is_control:
                last[1].parts.append([])
                open_.append((last[0] + 1, last[1].parts[-1]))
            thunk = Thunk(found[3], found[4], int(found[2]))
            open_[-1][1].append(thunk)
            owners = [each for each in owners if each[0] < column]
            if thunk.is_control:
                owners.append((column, thunk))
            last = column, thunk
    return top


@dataclass(frozen=True)
class Module:
    """A compiled program.

    Attributes:
        thunks: The outermost thunks.
        names: HLO instruction of each thunk, by number.
        text: The optimized HLO.
        seconds: CPU time of the compilation.
        temporary_bytes: Memory beside arguments and results.
        compiled: The program, as JAX returns it.
    """

    thunks: list[Thunk]
    names: dict[int, str]
    text: str
    seconds: float
    temporary_bytes: int
    compiled: jax.stages.Compiled

    def iterations(self, thunk: Thunk) -> int | None:
        """How often a loop iterates, if the host knows."""
        name = re.escape(self.names[thunk.number])
        found = re.search(
            rf"%?{name} = .* while\(.*known_trip_count\":{{\"n\":\"(\d+)", self.text
        )
        return int(found[1]) if found else None


def compile_for(
    device: str,
    function: Callable[..., Any],
    *arguments: Any,
    options: dict[str, Any] | None = None,
) -> Module:
    """Compiles a function for a device that need not be there.

    Args:
        device: Its name, a key of `DEVICES`.
        function: The function.
        *arguments: Its arguments, or their shapes.
        options: Options of XLA.

    Returns:
        The program.
    """
    from jax.experimental.topologies import get_topology_desc

    there = get_topology_desc(
        platform="cuda", target_config=DEVICES[device], topology="1x1x1"
    )
    sharding = NamedSharding(Mesh(np.array(there.devices), ("x",)), PartitionSpec())

    def shape(leaf: Any) -> Any:
        dtype = jnp.result_type(leaf)
        return jax.ShapeDtypeStruct(np.shape(leaf), dtype, sharding=sharding)

    lowered = jax.jit(function).lower(*jax.tree.map(shape, arguments))
    with tempfile.TemporaryDirectory() as folder:
        own = {"xla_gpu_autotune_level": 0, "xla_dump_to": folder, **(options or {})}
        start = time.process_time()
        compiled = lowered.compile(compiler_options=own)
        seconds = time.process_time() - start
        texts = {
            name: next(iter(sorted(Path(folder).glob(f"*.{name}.txt"))), None)
            for name in ("thunk_sequence", "thunk_sequence_after_thunk_passes")
        }
        last = texts["thunk_sequence_after_thunk_passes"] or texts["thunk_sequence"]
        assert last is not None, "XLA wrote no sequence of thunks"
        thunks = read_thunks(last.read_text())
        metadata = next(Path(folder).glob("*.thunk_metadata.txt")).read_text()
    pairs = re.findall(r'annotation: "([^"]*)"\s+thunk_id: (\d+)', metadata)
    memory = compiled.memory_analysis()
    return Module(
        thunks,
        {int(number): name for name, number in pairs},
        compiled.as_text() or "",
        seconds,
        0 if memory is None else memory.temp_size_in_bytes,
        compiled,
    )


@dataclass
class Executed:
    """What a run of a program does; the numbers are of one minibatch.

    Attributes:
        kernels: Kernels that run, those of conditions too.
        copies: Copies that run.
        conditions: Conditions of loops and indices of conditionals that are asked for.
        round_trips: Those of them that the host waits for.
        launches: Times that the host launches a kernel, copy or command buffer.
    """

    kernels: int = 0
    copies: int = 0
    conditions: int = 0
    round_trips: int = 0
    launches: int = 0


def executed(module: Module, places: list[Iterations]) -> Executed:
    """Counts what a program executes.

    Args:
        module: The program.
        places: What its loops do, from `loop_counts.run_counted` of the same function.

    Returns:
        The counts.
    """
    total = Executed()
    _execute(module, module.thunks, places, 1, False, total)
    return total


def controls(thunks: list[Thunk]) -> list[Thunk]:
    """The loops and conditionals of a sequence, those in command buffers too."""
    found = []
    for each in thunks:
        if each.is_control:
            found.append(each)
        else:
            for part in each.parts:
                found += controls(part)
    return found


def _execute(
    module: Module,
    thunks: list[Thunk],
    places: list[Iterations],
    times: int,
    on_device: bool,
    total: Executed,
) -> None:
    own = controls(thunks)
    pairs = dict(zip(map(id, own), _kept(own, places), strict=True))

    def visit(each: Thunk, on_device: bool) -> None:
        if each.kind == "kWhile":
            _loop(module, each, pairs[id(each)], on_device, total)
        elif each.kind == "kConditional":
            place = pairs[id(each)]
            total.conditions += place.runs
            total.round_trips += 0 if on_device else place.runs
            for part, inner, runs in zip(
                each.parts, place.inner, place.branches, strict=True
            ):
                _execute(module, part, inner, runs, on_device, total)
        elif each.kind == "kCommandBuffer":
            total.launches += times
            for inner_thunk in each.parts[0]:
                visit(inner_thunk, True)
        elif each.parts:
            for part in each.parts:
                for inner_thunk in part:
                    visit(inner_thunk, on_device)
        else:
            is_copy = each.kind in ("kCopy", "kMemset32BitValue", "kMemzero")
            total.copies += times * is_copy
            total.kernels += times * (not is_copy)
            total.launches += 0 if on_device else times

    for each in thunks:
        visit(each, on_device)


def _kept(own: list[Thunk], places: list[Iterations]) -> list[Iterations]:
    """The loops of a jaxpr that XLA kept: it removes some that never iterate twice."""
    places = list(places)
    if len(own) > len(places):
        raise ValueError(
            f"XLA has {len(own)} loops where the jaxpr has {len(places)}; it made some,"
            " and they cannot be matched"
        )
    while len(own) < len(places):

        def cost(k: int) -> tuple[int, int]:
            rest = places[:k] + places[k + 1 :]
            pairs = zip(own, rest[: len(own)], strict=True)
            wrong = sum(_size(one) != _size(other) for one, other in pairs)
            return wrong, places[k].turns

        del places[min(range(len(places)), key=cost)]
    return places


def _size(each: Thunk | Iterations) -> int:
    """The loops and conditionals inside."""
    if isinstance(each, Thunk):
        inner = [control for part in each.parts for control in controls(part)]
        return sum(1 + _size(one) for one in inner)
    return sum(1 + _size(one) for part in each.inner for one in part)


def _loop(
    module: Module, loop: Thunk, place: Iterations, on_device: bool, total: Executed
) -> None:
    known = module.iterations(loop) is not None
    asked = 0 if known and not on_device else place.turns + place.runs
    total.conditions += asked
    total.round_trips += 0 if on_device else asked
    condition, body = loop.parts
    inner = place.inner if place.kind == "while" else [[], *place.inner]
    _execute(module, condition, inner[0], asked, on_device, total)
    _execute(module, body, inner[1], place.turns, on_device, total)


def prepare_plugin() -> None:
    """Has JAX load its plugin for CUDA on a machine without a driver.

    To be called before JAX looks for devices.
    """
    os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if jax.config.jax_platforms is None:
        jax.config.update("jax_platforms", "cpu")
