"""New equations, written as JAX functions of variables."""

from collections.abc import Callable
from typing import Any

import jax

from edbatch.cell.cell_graph import Atom, Inliner, dtype_of, shape_of


class Emitter(Inliner):
    """Collects the equations that stand for functions of variables.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from edbatch.cell.cell_graph import trace_cell
        >>> spec = jax.ShapeDtypeStruct((3,), "float32")
        >>> graph, _ = trace_cell(lambda _, x: x, {}, [spec])
        >>> emitter = Emitter()
        >>> emitter.emit(lambda x: jnp.sin(x) + 1, *graph.inputs).aval.shape
        (3,)
        >>> [each.primitive.name for each in emitter.nodes]
        ['sin', 'add']
    """

    def emit(self, function: Callable[..., Any], *atoms: Atom) -> Any:
        """Adds the equations of a function of some atoms.

        Args:
            function: Takes an array per atom.
            *atoms: What it is called with.

        Returns:
            The function's output, an atom in place of each array.
        """
        specs = [jax.ShapeDtypeStruct(shape_of(each), dtype_of(each)) for each in atoms]
        closed, output = jax.make_jaxpr(function, return_shape=True)(*specs)
        found = self.add(closed, atoms)
        return jax.tree.unflatten(jax.tree.structure(output), found)
