"""Targets: all settings that depend on the kind of device, in one place.

The target is chosen by the device that will run a program, and the program is compiled
for it. No other part of edbatch checks the kind of device. The default numbers were
measured on CPUs and are also used for TPUs; those of GPUs follow from kernel counts and
are also used for unknown platforms.
"""

import functools
import os
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
from jax.sharding import Mesh

Option = bool | int | str  # a value of an option of XLA


@dataclass(frozen=True)
class Target:
    """Settings of programs for one kind of device.

    Attributes:
        kind: ``"cpu"``, ``"gpu"`` or ``"tpu"``.
        widths: Default chunk widths of `eb.Sizes`, in rows, ascending.
        chunk_overhead: Default cost in `eb.Sizes` of running one more chunk, in rows.
        member_widths: Additional chunk widths for families, if ``widths`` are the
            default. A batch of a family reads one member's parameters, so batches are
            small and have much the same size for all members.
        fence: How reads are ordered before later writes. On CPUs XLA drops optimization
            barriers before fusion, but does not fuse across a loop, here one of zero
            iterations: ``"loop"``. Elsewhere ``"barrier"``.
        fenced_slice: Slices of at least this many elements are read before they are
            used; None for none. Otherwise XLA's CPU backend reads a slice at its use,
            element by element, and does not vectorise the operation that uses it. With
            the fence, a lattice LSTM of 128, whose slices have up to 16,384 elements,
            takes 18 instead of 23 ms. For smaller slices the fence would cost more.
        page_bytes: Matrices with a row stride that is a multiple of this many bytes get
            padding columns; 0 for none. See `edbatch.cell.lowering`.
        line_bytes: Bytes of padding per row.
        padded_bytes: Only matrices larger than this are padded.
        pretransposed_bytes: Weights of up to this many bytes are transposed once for
            the backward pass, before the loops; 0 for none. See
            `edbatch.cell.transposed_weight`.
        taped_contraction: In cells without operands, which run in few, wide chunks, the
            backward pass recomputes products, except those that contract at least this
            many elements: their results are kept on tapes. 0 recomputes all. On one
            core, value and gradient of a tree-LSTM, whose leaves are such cells, take
            3% less time at hidden 128 and 4% less at 256; on two cores the same time.
        gather_row_ns: Extra time to gather a row rather than read it in a slice, if its
            chunk is not wide.
        align_node_ns: Minimum gain per node for an aligned layout: the time to compute
            it on the host, 90 to 230 ns for 64 sentences, plus the cost of more loops
            in the program.
        own_memory: Whether arrays must be transferred to the device. If so, a loader
            transfers plans ahead: an explicit transfer of all arrays of a plan takes
            0.2 ms of host time, in the loader's threads; the implicit transfer of a
            `jax.jit` call takes 0.01 ms, while the device waits.
        control: How a program reaches the code of a chunk: ``"loops"``, nested, one
            per type, width and set of slices; or ``"switch"``, one loop over chunks.
            See `edbatch.executor`.
        ungrouped_loops: Up to this many loops, an outer loop around a group of them
            costs more than it saves.
        integer_rows: Whether loops carry bfloat16 arrays as their bits; see
            `edbatch.cell.half_rows`.
        coarse_options: XLA options for coarse programs, which compile fast; options
            unknown to the installed XLA are omitted. On CPUs they turn off LLVM
            optimization and the fusion emitters: value and gradient of a tree-LSTM,
            hidden 64, take 0.7 instead of 4.3 CPU seconds to compile, and three times
            as long to run. The XLA of JAX 0.12 always uses the fusion emitters, so
            coarse programs take about twice as long to compile there.
        small_product: A program has small products if each of its cells takes at most
            this many multiply-adds per row, and three quarters of all multiply-adds are
            in types with wide chunks.
        wide_chunk: Minimum rows of a wide chunk.
        small_product_options: XLA options for fine programs with small products. On
            CPUs, Eigen computes their products instead of YNNPACK, whose threads cost
            more than they gain. Eigen packs the weights again for each chunk, which
            costs even more where chunks are narrow. See "Products of small cells" in
            docs/results.md.
    """

    kind: str
    widths: tuple[int, ...] = (4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512)
    chunk_overhead: float = 10.0
    member_widths: tuple[int, ...] = (1, 2, 12, 20, 40, 56, 80, 112, 160)
    fence: Literal["loop", "barrier"] = "barrier"
    fenced_slice: int | None = None
    page_bytes: int = 0
    line_bytes: int = 64
    padded_bytes: int = 2**20
    pretransposed_bytes: int = 0
    taped_contraction: int = 0
    gather_row_ns: float = 100.0
    align_node_ns: float = 170.0
    own_memory: bool = True
    control: Literal["loops", "switch"] = "loops"
    ungrouped_loops: int = 8
    integer_rows: bool = False

    coarse_options: tuple[tuple[str, Option], ...] = ()
    small_product: int = 0
    wide_chunk: int = 64
    small_product_options: tuple[tuple[str, Option], ...] = ()


CPU = Target(
    "cpu",
    fence="loop",
    integer_rows=True,
    fenced_slice=2048,
    page_bytes=4096,
    pretransposed_bytes=2**20,
    own_memory=False,
    coarse_options=(
        ("xla_backend_optimization_level", 0),
        ("xla_cpu_use_fusion_emitters", False),
        ("xla_cpu_parallel_codegen_split_count", 1),
    ),
    small_product=2**16,
    small_product_options=(("xla_cpu_experimental_ynn_fusion_type", ""),),
)
# On one core YNNPACK gains nothing from threads, and Eigen is also faster for larger
# cells, if all their weights are pre-transposed: weights of 2**21 multiply-adds take at
# most 2**23 bytes. See "Products of small cells" in docs/results.md.
CPU_OF_ONE_CORE = replace(
    CPU, small_product=2**21, pretransposed_bytes=2**23, taped_contraction=128
)
# Widths that tensor cores multiply without padding. There are few, since each width is
# compiled separately, and a chunk costs about fourteen kernels, as much as many rows:
# see docs/scaling.md.
GPU = Target(
    "gpu",
    widths=(16, 32, 64, 128, 256, 512, 1024),
    chunk_overhead=64.0,
    member_widths=(),
    control="switch",
)
TPU = Target("tpu")

_DEFAULT = "jax_default_device"


def target_of(platform: str) -> Target:
    """Returns the target of a platform.

    Args:
        platform: Its name in JAX, such as ``jax.devices()[0].platform``.

    Returns:
        The target; the GPU target for ``"gpu"``, ``"cuda"``, ``"rocm"`` and unknown
        platforms. CPUs have another target if the process may use only one core.

    Example:
        >>> target_of("cpu").fence, target_of("cuda").kind
        ('loop', 'gpu')
    """
    if platform == "cpu":
        return _cpu()
    return TPU if platform == "tpu" else GPU


@functools.cache
def _cpu() -> Target:
    """Returns the target of this CPU; cached, as XLA also counts cores only once."""
    return CPU_OF_ONE_CORE if usable_cores() == 1 else CPU


def choose_target(
    arrays: Any = (), mesh: Mesh | None = None, unknown: Target | None = None
) -> Target:
    """Returns the target of the device that would run a function now.

    Args:
        arrays: The function's arguments, a pytree. The first array committed to a
            device, as by `jax.device_put`, decides.
        mesh: The mesh that the function runs on; takes precedence over `arrays`.
        unknown: The result if an array is traced, so that the device is not known yet;
            by default traced arrays are ignored.

    Returns:
        The target. If no array is committed, that of ``jax.default_device``, or
        otherwise that of the default backend.

    Example:
        >>> import jax.numpy as jnp
        >>> choose_target(jax.device_put(jnp.ones(3), jax.devices("cpu")[0])).kind
        'cpu'
    """
    if mesh is not None:
        return target_of(mesh.devices.flat[0].platform)
    placed = None
    for leaf in jax.tree.leaves(arrays):
        if isinstance(leaf, jax.core.Tracer):
            if unknown is not None:
                return unknown
        elif placed is None and getattr(leaf, "committed", False):
            placed = leaf
    if placed is not None:
        return target_of(next(iter(placed.devices())).platform)
    default = getattr(jax.config, _DEFAULT)
    if default is None:
        return target_of(jax.default_backend())
    return target_of(default if isinstance(default, str) else default.platform)


def usable_cores() -> int:
    """Returns how many cores of this machine the process may use.

    Example:
        >>> usable_cores() > 0
        True
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
