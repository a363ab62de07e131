"""Finds the structure, shapes and dtypes of a cell's outputs by tracing it."""

import inspect
from collections.abc import Callable
from typing import Any

import jax

from edbatch.errors import CellError, EdbatchError, raising_line, user_line
from edbatch.graph.array_kinds import is_plain
from edbatch.graph.cell_fault import describe_fault
from edbatch.graph.stand_in import is_about_stand_in

# Leaves of a cell's output, and their tree.
OutputSpec = tuple[list[jax.ShapeDtypeStruct], Any]


def infer_outputs(
    name: str,
    function: Callable[..., Any],
    inputs: tuple[Any, ...],
    trace: Callable[[], OutputSpec],
) -> OutputSpec:
    """Traces a cell on the shapes of its inputs, and checks its output.

    Args:
        name: The cell's name.
        function: The cell's function.
        inputs: Operands and external inputs, as from `input_specs`.
        trace: Traces the function on these inputs.

    Returns:
        The leaves of the cell's output, and their tree.

    Raises:
        CellError: It cannot be traced on these shapes, returns no array, or returns a
            random key.
    """
    try:
        leaves, tree = trace()
    except Exception as error:
        if isinstance(error, EdbatchError) and not is_about_stand_in(error):
            raise
        raise CellError(_explain(name, function, inputs, error)) from error
    if not leaves:
        raise CellError(
            f"cell {name!r} returns no array; a cell returns a pytree with at least one"
            " array"
        )
    if not all(is_plain(each.dtype) for each in leaves):
        raise CellError(
            f"cell {name!r} returns a key, but values of nodes are numbers; return"
            " jax.random.key_data(key), or draw the numbers in the cell"
        )
    return leaves, tree


def _explain(
    name: str, function: Callable[..., Any], inputs: tuple[Any, ...], error: Exception
) -> str:
    if is_about_stand_in(error):
        where = raising_line(error) or user_line()
        return (
            f"cell {name!r} uses a handle or a parameter that was not passed to it"
            f" ({where}): it closes over a value of the model, which is not known while"
            " the model is recorded; pass it to the cell as an argument"
        )
    shapes = ", ".join(
        f"{each.dtype}{list(each.shape)}" for each in inputs[0] + inputs[1]
    )
    if isinstance(error, TypeError) and not raising_line(error):  # it was not entered
        return (
            f"cell {name!r} cannot be called on inputs ({shapes}) ({user_line()}):"
            f" {describe_fault(error)}; {_fix_of_call(function)}"
        )
    return (
        f"cell {name!r} cannot be traced on inputs ({shapes}): {describe_fault(error)};"
        " a cell must be a JAX function of one instance whose output shapes do not"
        " depend on values"
    )


def _fix_of_call(function: Callable[..., Any]) -> str:
    if next(iter(inspect.signature(function).parameters), None) != "self":
        return "pass the arguments that its function takes"
    return (
        "a cell cannot be a method: define it outside the class, and pass the arrays"
        " that it needs as arguments"
    )
