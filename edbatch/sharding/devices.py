"""Chooses and checks the devices that a sharded function runs on."""

from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh

from edbatch.arguments import is_whole
from edbatch.errors import EdbatchError, PlanError, nearest, shown
from edbatch.target import usable_cores


def use_cpu_devices(count: int | None = None) -> int:
    """Makes JAX see the cores of this machine as several devices.

    XLA runs a small operation on a single core; edbatch's sharded functions run one
    shard on each device. Call this before JAX does anything.

    The rule: a CPU is one device by default, whose wide operations XLA spreads over its
    cores. Where a loader feeds data, in training and in inference, this is the fastest
    choice or, with large states, as fast as any other. Where the same plans run
    repeatedly, or a single minibatch has to be fast, several devices can be faster;
    `choose_devices` measures it. A function returned by `edbatch.batch` runs on one
    device, however many there are. It logs once that there are cores for more devices
    (level INFO of the logger ``edbatch``), or that other devices stay idle (a warning).
    `edbatch.Batched.sharded` runs on all devices.

    Args:
        count: Number of devices; None for one per core that this process may use.

    Returns:
        The number of devices.

    Raises:
        EdbatchError: The number is not positive, or JAX already made its devices.

    Example:
        >>> import edbatch as eb
        >>> eb.use_cpu_devices(0)
        Traceback (most recent call last):
        edbatch.errors.EdbatchError: a machine has at least one CPU device, ...
    """
    if count is None:
        count = usable_cores()
    if not is_whole(count) or count < 1:
        raise EdbatchError(
            "a machine has at least one CPU device, a whole number of them, but"
            f" use_cpu_devices got {shown(count)};"
            " leave the number out for one device per core"
        )
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        raise EdbatchError(
            f"the number of CPU devices is fixed once JAX has run anything, so"
            f" use_cpu_devices({count}) comes too late; call it right after the"
            " imports, before any array is made"
        ) from None
    return count


def all_devices() -> Mesh:
    """Returns a mesh of all devices, including those of other processes.

    Returns:
        A mesh of one axis, ``"data"``.

    Example:
        >>> all_devices().axis_names
        ('data',)
    """
    return Mesh(np.array(jax.devices()), ("data",))


def automatic(mesh: Mesh) -> Mesh:
    """Returns a mesh of the same devices with automatic axes only.

    The axes of ``jax.make_mesh`` are explicit: arrays have the mesh in their type, and
    outside ``jax.set_mesh`` hardly anything can be computed from a result.

    Args:
        mesh: The mesh.

    Returns:
        The mesh; equal to ``mesh`` if its axes are automatic.
    """
    return Mesh(mesh.devices, mesh.axis_names)


def choose_axis(mesh: Mesh, axis: str | None = None) -> str:
    """Finds the axis of a mesh over which a minibatch is split.

    Args:
        mesh: The mesh.
        axis: The name of the axis; may be left out if there is only one axis.

    Returns:
        The name of the axis.

    Raises:
        PlanError: ``mesh`` is not a mesh of devices; it has several axes and none is
            named; it has no axis of this name; or it has no device of this process.
    """
    if not isinstance(mesh, Mesh):
        raise PlanError(
            "a sharded function runs on a jax.sharding.Mesh of devices but received"
            f" {type(mesh).__name__}; make one by jax.make_mesh((2,), ('data',)), or"
            " leave it out to use all devices"
        )
    names = [str(each) for each in mesh.axis_names]
    if axis is None and len(names) != 1:
        raise PlanError(
            "a minibatch is split over one axis of a mesh but this one has"
            f" {len(names)}, {dict(mesh.shape)}; name the axis: .sharded(mesh,"
            f" axis={names[0] if names else 'data'!r})"
        )
    if axis is not None and axis not in names:
        raise PlanError(
            f"axis={axis!r} is not an axis of the mesh; {nearest(str(axis), names)}"
        )
    if all(each.process_index != jax.process_index() for each in mesh.devices.flat):
        raise PlanError(
            f"the mesh contains no device of this process, {jax.process_index()} of"
            f" {jax.process_count()}; call jax.distributed.initialize in every process"
            " before anything else, and make the mesh of jax.devices()"
        )
    return axis or names[0]


def check_automatic(params: Any) -> None:
    """Checks that no mesh with explicit axes is in use.

    Args:
        params: The model's parameters.

    Raises:
        PlanError: A mesh with explicit axes is set around the call, or is in the type
            of a parameter.
    """
    rule = (
        "a sharded function leaves the placement of arrays to JAX (axes of type Auto)"
        " but {} a mesh with explicit axes, as jax.make_mesh makes them; {}"
    )
    if _is_explicit(jax.sharding.get_abstract_mesh()):
        fix = "call it outside of jax.set_mesh"
        raise PlanError(rule.format("is called under", fix))
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        if _is_explicit(jax.typeof(leaf).sharding.mesh):
            where = f"params{jax.tree_util.keystr(path)} lies on"
            fix = "place parameters by the function's own .replicate(params)"
            raise PlanError(rule.format(where, fix))


def _is_explicit(mesh: AbstractMesh) -> bool:
    return AxisType.Explicit in mesh.axis_types
