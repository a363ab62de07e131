"""JAX settings that a call traces under: a part of its signature.

Context managers set some of them for one thread, and the background thread compiles
under the settings of the call.
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
    if hasattr(jax.config, name)  # not every version of JAX has all of them
)
# The other settings are process-wide, or have no public context manager.
_CONTEXTS: dict[str, Callable[[Any], Any]] = {
    name: getattr(jax, name.removeprefix("jax_"))
    for name in _NAMES
    if name != "jax_disable_jit" and hasattr(jax, name.removeprefix("jax_"))
}
_SETTINGS: Callable[[Any], tuple[Any, ...]] = attrgetter(*_NAMES)
_OF_THREAD: Callable[[Any], tuple[Any, ...]] = attrgetter(*_CONTEXTS)
SETTING_NAMES = (*_NAMES, "the mesh of jax.set_mesh")
_IN_A_TRACE = "that of a trace"  # inside a trace the mesh can be neither read nor set


def settings() -> tuple[Any, ...]:
    """Returns the settings of JAX that the calling thread traces under.

    The last of them is the mesh of ``jax.set_mesh``, or None.
    """
    return (*_SETTINGS(jax.config), _mesh())


def thread_settings() -> tuple[Any, ...]:
    """Returns the settings that JAX's public context managers set for one thread.

    This runs each time an instance asks for a value, so it reads no other settings.
    """
    return _OF_THREAD(jax.config)


def _mesh() -> jax.sharding.Mesh | str | None:
    if jax.sharding.get_abstract_mesh().empty:  # the cheaper check
        return None
    try:
        mesh = jax.sharding.get_mesh()
    except ValueError:
        return _IN_A_TRACE
    return None if mesh.empty else mesh


def changed_settings(before: tuple[Any, ...], after: tuple[Any, ...]) -> list[str]:
    """Names the settings of a thread that differ.

    Args:
        before: An earlier result of `thread_settings`.
        after: A later one.

    Returns:
        Their names in ``jax.config``.
    """
    return _different(_CONTEXTS, before, after)


def _different(
    names: Iterable[str], before: tuple[Any, ...], after: tuple[Any, ...]
) -> list[str]:
    pairs = zip(names, before, after, strict=True)
    return [name for name, one, other in pairs if one != other]


def under(values: tuple[Any, ...]) -> ExitStack:
    """Applies settings to the calling thread, until the stack is closed.

    Settings without a context manager are left unchanged; `check_under` checks them.

    Args:
        values: The result of `settings`, in this thread or another.

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
    """Checks that this thread traces under the given settings.

    Args:
        values: The result of `settings`, in this thread or another.

    Raises:
        CompilationError: A process-wide setting has another value now.
    """
    if changed := _different(_NAMES, values[:-1], _SETTINGS(jax.config)):
        raise CompilationError(
            f"{', '.join(changed)} of jax.config was changed since the call that the"
            " program is for; set it before the first call"
        )
