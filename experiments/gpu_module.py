"""Compiles programs for a GPU on a machine without one.

XLA compiles for a description of a device (`gpu_devices`) with JAX's plugin for CUDA,
the extra ``gpu-aot``; no driver is needed. The compiled program is a tree of *thunks*
(see `gpu_thunks`); `gpu_execution` counts what the thunks execute.
"""

import os
import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gpu_devices import DEVICES
from gpu_thunks import Thunk, read_thunks
from jax.sharding import Mesh, NamedSharding, PartitionSpec


@dataclass(frozen=True)
class Module:
    """A compiled program.

    Attributes:
        thunks: The outermost thunks.
        names: HLO instruction of each thunk, by number.
        text: The optimized HLO.
        seconds: CPU time of the compilation.
        temporary_bytes: Memory besides arguments and results.
        compiled: The program, as JAX returns it.
    """

    thunks: list[Thunk]
    names: dict[int, str]
    text: str
    seconds: float
    temporary_bytes: int
    compiled: jax.stages.Compiled

    @property
    def cleared_bytes(self) -> int:
        """Bytes of the arrays that are filled with a constant in each call."""
        entry = self.text[self.text.find("\nENTRY") :]
        filled = re.findall(r"= (\(.*\)|\S+) fusion\(\), kind=kLoop", entry)
        arrays = re.findall(r"([a-z]+)(\d+)?\[([\d,]*)\]", "".join(filled))
        return sum(
            int(bits or 8) // 8 * prod(map(int, filter(None, shape.split(","))))
            for _, bits, shape in arrays
        )

    def iterations(self, thunk: Thunk) -> int | None:
        """Returns a loop's number of iterations if the host knows it, else None."""
        name = re.escape(self.names[thunk.number])
        found = re.search(
            rf"^\s*(?:ROOT )?%?{name} = .* while\(.*known_trip_count\":{{\"n\":\"(\d+)",
            self.text,
            re.MULTILINE,
        )
        return int(found[1]) if found else None


def compile_for(
    device: str,
    function: Callable[..., Any],
    *arguments: Any,
    donated: tuple[int, ...] = (),
    options: dict[str, Any] | None = None,
) -> Module:
    """Compiles a function for a device that need not be present.

    Args:
        device: The device's name, a key of `DEVICES`.
        function: The function.
        *arguments: The function's arguments, or their shapes.
        donated: Positions of the donated arguments.
        options: XLA options.

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

    lowered = jax.jit(function, donate_argnums=donated).lower(
        *jax.tree.map(shape, arguments)
    )
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


def prepare_plugin() -> None:
    """Makes JAX load its plugin for CUDA on a machine without a driver.

    Call this before JAX looks for devices.
    """
    os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if jax.config.jax_platforms is None:
        jax.config.update("jax_platforms", "cpu")
