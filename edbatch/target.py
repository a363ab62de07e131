"""Targets: everything that the kind of a device decides, in one place.

A target is chosen by the device that will run, and is part of what a program is
compiled for. Nothing else in edbatch asks which device there is. The numbers were
measured on CPUs; those of GPUs follow from counts of kernels, and others have the same.
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
    """Settings of programs that a kind of device decides.

    Attributes:
        kind: ``"cpu"``, ``"gpu"`` or ``"tpu"``.
        widths: Widths of chunks that `eb.Sizes` takes by default, in rows, ascending.
        chunk_overhead: Cost of running one more chunk that it takes by default, in
            rows.
        member_widths: Widths that chunks of families may have beside these, where
            ``widths`` are the default. A batch of a family is what reads one member's
            parameters, so it is small and its size much the same for all members.
        fence: How reads are kept apart from later writes. On CPUs XLA drops
            optimization barriers before it fuses operations, but fuses nothing across a
            loop, of zero iterations here: ``"loop"``; else ``"barrier"``.
        fenced_slice: Elements from which on a slice is read before it is used; None for
            none. XLA's CPU backend reads a slice where it is used, element by element,
            and then does not vectorise what uses it: a lattice LSTM of 128, whose
            slices have up to 16,384 elements, takes 18 in place of 23 ms with the
            fence. Below, it would cost more.
        page_bytes: Matrices whose rows lie a multiple of so many bytes apart get
            columns of padding; 0 for none. See `edbatch.cell.lowering`.
        line_bytes: Bytes of these columns.
        padded_bytes: Larger matrices than so many bytes get them.
        pretransposed_bytes: Matrices of up to so many bytes are transposed once, before
            the loops, for the backward pass; 0 for none. See
            `edbatch.cell.transposed_weight`.
        taped_contraction: Cells without operands run in few and wide chunks, so their
            products are computed again in the backward pass, but for those that
            contract so many elements or more, whose results are kept on tapes; 0 for
            none of them. Value and gradient of a tree-LSTM on one core, whose leaves
            are such cells, take 3% less at hidden 128 and 4% less at 256; on two cores
            as long.
        gather_row_ns: How much longer a row takes to gather than to read in a slice, if
            its chunk is not wide.
        align_node_ns: What a node must gain to be laid out aligned: the time that this
            takes the host, 90 to 230 ns for 64 sentences, and that of more loops in the
            program.
        own_memory: Whether arrays have to be sent to it. A loader sends plans ahead
            then: an explicit transfer takes the host 0.2 ms for all arrays of a plan,
            in its threads; that of a call of `jax.jit` 0.01 ms, while the device waits.
        control: How a program comes to the code of a chunk: ``"loops"``, nested, one
            per type, width and set of slices; or ``"switch"``, one loop over chunks.
            See `edbatch.executor`.
        ungrouped_loops: Up to so many loops, the loop around a group of them costs more
            than it saves.
        integer_rows: Whether loops carry the bits of arrays of bfloat16: see
            `edbatch.cell.half_rows`.
        coarse_options: Options of XLA for coarse programs, which compile fast; those
            that it does not know are left out. On CPUs without optimization by LLVM
            and without the emitters of fusions: value and gradient of a tree-LSTM,
            hidden 64, take 0.7 in place of 4.3 CPU seconds to compile, and three times
            as long to run. The XLA of JAX 0.12 has no other emitters any more, so that
            coarse programs take about twice as long to compile there.
        small_product: A program has small products if none of its cells takes more
            multiply-adds for one row, and three quarters of all multiply-adds are in
            types that have wide chunks.
        wide_chunk: Rows from which on a chunk is wide.
        small_product_options: Options of XLA for the fine programs with small products.
            On CPUs their products run by Eigen in place of YNNPACK, whose threads cost
            more than they bring; Eigen prepares the weights for each chunk, which costs
            more than that where chunks are narrow: see "Products of small cells" in
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
# On one core YNNPACK has no threads to gain by, and Eigen is faster with larger cells,
# too, if all their weights are transposed before: those of 2**21 multiply-adds take at
# most so many bytes. See "Products of small cells" in docs/results.md.
CPU_OF_ONE_CORE = replace(
    CPU, small_product=2**21, pretransposed_bytes=2**23, taped_contraction=128
)
# Widths that tensor cores multiply without padding, and few: each is compiled by
# itself, and a chunk costs some fourteen kernels, as much as many rows: scaling.md.
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
        The target; that of GPUs for ``"gpu"``, ``"cuda"``, ``"rocm"`` and for unknown
        ones. That of a CPU is another one if the process may use one core alone.

    Example:
        >>> target_of("cpu").fence, target_of("cuda").kind
        ('loop', 'gpu')
    """
    if platform == "cpu":
        return _cpu()
    return TPU if platform == "tpu" else GPU


@functools.cache
def _cpu() -> Target:
    """Returns the target of this CPU; XLA counts its cores once, too."""
    return CPU_OF_ONE_CORE if usable_cores() == 1 else CPU


def choose_target(
    arrays: Any = (), mesh: Mesh | None = None, unknown: Target | None = None
) -> Target:
    """Chooses the target of the device that would run a function now.

    Args:
        arrays: What the function is given, a pytree. Those that are committed to a
            device, as by `jax.device_put`, decide.
        mesh: The mesh that it runs on, which decides before them.
        unknown: What to return if an array is traced, so that the device is not known
            yet; by default the others decide.

    Returns:
        The target; that of ``jax.default_device`` where nothing is committed, else of
        the default backend.

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
