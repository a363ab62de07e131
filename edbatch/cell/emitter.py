"""Collects new equations of a cell, written as JAX functions of its variables."""

from collections.abc import Callable
from typing import Any

import jax

from edbatch.cell.cell_graph import Inliner
from edbatch.cell.jaxpr import Atom, dtype_of, shape_of, trace


class Emitter(Inliner):
    """Collects the equations of JAX functions that are applied to variables.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from edbatch.cell.cell_graph import trace_cell
        >>> from edbatch.cell.jaxpr import name_of
        >>> spec = jax.ShapeDtypeStruct((3,), "float32")
        >>> graph, _ = trace_cell(lambda _, x: x, {}, [spec])
        >>> emitter = Emitter()
        >>> emitter.emit(lambda x: jnp.sin(x) + 1, *graph.inputs).aval.shape
        (3,)
        >>> [name_of(each) for each in emitter.nodes]
        ['sin', 'add']
    """

    def emit(self, function: Callable[..., Any], *atoms: Atom) -> Any:
        """Adds the equations of a function applied to some atoms.

        Args:
            function: Takes one array per atom.
            *atoms: Its arguments.

        Returns:
            The function's output, with an atom in place of each array.
        """
        specs = [jax.ShapeDtypeStruct(shape_of(each), dtype_of(each)) for each in atoms]
        body, output_tree = trace(function, *specs)
        return jax.tree.unflatten(output_tree, self.add(body, atoms))
