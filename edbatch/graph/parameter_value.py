"""Turns parameters into values of the graph, as outputs of a cell that returns them.

A call of a cell reads a parameter directly. But a model's result, an element of a
padded list and an argument of `edbatch.value` must be outputs of cells. If one of these
is a parameter, such as the first state of a chain without words, a node of the cell
`parameter` returns it.
"""

from typing import Any

import jax

from edbatch.errors import RecordingError, user_line
from edbatch.graph.cell_decorator import cell
from edbatch.graph.handle import Handle
from edbatch.graph.host_arrays import may_change
from edbatch.graph.node_keys import is_key
from edbatch.graph.parameters import ParameterPath
from edbatch.graph.tape import InstanceTape


@cell
def parameter(params: Any) -> Any:
    """Returns a part of the parameters."""
    return params


def parameters_as_values(
    recorder: InstanceTape, tree: Any, *, copies: bool = False
) -> Any:
    """Replaces the parameters in a pytree by outputs of cells.

    Args:
        recorder: The instance's tape.
        tree: Any pytree.
        copies: Whether to copy arrays that their owners may modify.

    Returns:
        The same pytree. A parameter that is a pytree becomes a pytree of handles.

    Raises:
        RecordingError: JAX cannot flatten the tree, or a parameter is a random key.
    """
    if type(tree) is Handle:  # the most frequent case
        return tree

    def as_value(leaf: Any) -> Any:
        if isinstance(leaf, ParameterPath):
            return parameter_as_value(recorder, leaf)
        return leaf.copy() if copies and may_change(leaf) else leaf

    try:
        leaves, treedef = jax.tree.flatten(tree)
    except (TypeError, ValueError) as error:
        raise RecordingError(
            "a model's result, an argument of eb.value or an element of a padded list"
            f" is not a pytree that JAX can flatten ({error}); use dict keys of one"
            " type, and lists in place of iterators"
        ) from error
    return jax.tree.unflatten(treedef, map(as_value, leaves))


def parameter_as_value(recorder: InstanceTape, path: ParameterPath) -> Any:
    """Returns the handles of a parameter, outputs of one node in each instance.

    Args:
        recorder: The instance's tape.
        path: The parameter.

    Returns:
        A handle, or a pytree of them.

    Raises:
        RecordingError: The parameter is or contains a random key.
    """
    found = recorder.parameter_handles.get(path)
    if found is None:
        leaves = jax.tree.leaves(path._spec)
        if not leaves:  # an empty list or dict
            return path._spec
        if any(is_key(each.dtype) for each in leaves):
            raise RecordingError(
                f"{path!r} is a key of JAX, or holds one ({user_line()}); results and"
                " values are numbers: return jax.random.key_data(key), by a cell"
            )
        found = recorder.call(parameter, (path,), {})
        recorder.parameter_handles[path] = found
    return found
