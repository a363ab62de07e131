"""The settings of JAX that a call traces under: a part of its signature.

A thread has some of them for itself, in a context, and the background thread compiles
under those of the call.
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from operator import attrgetter
from typing import Any

import jax

from edbatch.cell.type_call import SETTINGS as TRACED_UNDER
from edbatch.errors import CompilationError

_X64 = "jax_enable_x64"  # the first of the settings
_NAMES = tuple(
    name
    for name in (_X64, *sorted({*TRACED_UNDER, "jax_default_device"} - {_X64}))
    if hasattr(jax.config, name)  # not every version of JAX has all
)
# Others are those of all threads, or have contexts that are not public.
_CONTEXTS: dict[str, Callable[[Any], Any]] = {
    name: getattr(jax, name.removeprefix("jax_"))
    for name in _NAMES
    if name != "jax_disable_jit" and hasattr(jax, name.removeprefix("jax_"))
}
_SETTINGS: Callable[[Any], tuple[Any, ...]] = attrgetter(*_NAMES)
_OF_THREAD: Callable[[Any], tuple[Any, ...]] = attrgetter(*_CONTEXTS)
SETTING_NAMES = (*_NAMES, "the mesh of jax.set_mesh")
_IN_A_TRACE = "that of a trace"  # which cannot be read there, nor set


def settings() -> tuple[Any, ...]:
    """Returns the settings of JAX that the calling thread traces under.

    The last of them is the mesh of ``jax.set_mesh``, or None.
    """
    return (*_SETTINGS(jax.config), _mesh())


def thread_settings() -> tuple[Any, ...]:
    """Returns the settings that a thread may have in a public context of JAX.

    They are read each time that an instance asks for a value, so there are no others.
    """
    return _OF_THREAD(jax.config)


def _mesh() -> jax.sharding.Mesh | str | None:
    if jax.sharding.get_abstract_mesh().empty:  # which is found sooner
        return None
    try:
        mesh = jax.sharding.get_mesh()
    except ValueError:
        return _IN_A_TRACE
    return None if mesh.empty else mesh


def changed_settings(before: tuple[Any, ...], after: tuple[Any, ...]) -> list[str]:
    """Names the settings of a thread that differ.

    Args:
        before: What `thread_settings` returned.
        after: What it returned later.

    Returns:
        Their names, as ``jax.config`` has them.
    """
    return _different(_CONTEXTS, before, after)


def _different(
    names: Iterable[str], before: tuple[Any, ...], after: tuple[Any, ...]
) -> list[str]:
    pairs = zip(names, before, after, strict=True)
    return [name for name, one, other in pairs if one != other]


def under(values: tuple[Any, ...]) -> ExitStack:
    """Puts the calling thread under settings, until the stack is closed.

    Those without a context are as they are: `check_under` tells whether they differ.

    Args:
        values: What `settings` returned, in this thread or another.

    Returns:
        The stack, a context manager.
    """
    stack = ExitStack()
    *own, mesh = values
    for name, value in zip(_NAMES, own, strict=True):
        if getattr(jax.config, name) != value and name in _CONTEXTS:
            stack.enter_context(_CONTEXTS[name](value))
    current = _mesh()
    if mesh != current and _IN_A_TRACE not in (mesh, current):
        stack.enter_context(jax.set_mesh(mesh))
    return stack


def check_under(values: tuple[Any, ...]) -> None:
    """Checks that what is traced in this thread is traced under settings.

    Args:
        values: What `settings` returned, in this thread or another.

    Raises:
        CompilationError: A setting of the process has another value now.
    """
    if changed := _different(_NAMES, values[:-1], _SETTINGS(jax.config)):
        raise CompilationError(
            f"{', '.join(changed)} of jax.config was changed since the call that the"
            " program is for; set it before the first call"
        )
