"""A product of an input with a matrix of parameters, in a canonical form.

JAX has one primitive for products, `dot_general`, and many ways to reach it: ``x @ W``,
``W @ x``, `jnp.einsum`, `jnp.tensordot`. Here each is an input ``[*free, k]`` times a
weight ``[k, e]``: the contracted dimensions come last in the input and first in the
weight, and are flattened into one.
"""

import math
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from edbatch.cell.cell_graph import Node
from edbatch.cell.jaxpr import JaxprEqn, Var, dtype_of, read_dot, shape_of


@dataclass(frozen=True, eq=False)
class Product:
    """A product as an input times a weight.

    Attributes:
        node: The equation.
        x: The input.
        weight: The weight, which depends on parameters only.
        x_dims: Contracted dimensions of the input, ascending.
        weight_dims: The corresponding dimensions of the weight.
        weight_first: Whether the weight's dimensions come first in the result.
        precision: As for `jax.lax.dot_general`.
    """

    node: JaxprEqn
    x: Var
    weight: Var
    x_dims: tuple[int, ...]
    weight_dims: tuple[int, ...]
    weight_first: bool
    precision: Any

    @property
    def output(self) -> Var:
        """The result."""
        return self.node.outvars[0]

    @property
    def free_shape(self) -> tuple[int, ...]:
        """Sizes of the input's dimensions that are not contracted."""
        return _without(shape_of(self.x), self.x_dims)

    @property
    def column_shape(self) -> tuple[int, ...]:
        """Sizes of the weight's dimensions that are not contracted."""
        return _without(shape_of(self.weight), self.weight_dims)

    @property
    def rows(self) -> int:
        """Size of the contracted dimensions, flattened: ``k``."""
        return math.prod(shape_of(self.x)[d] for d in self.x_dims)

    @property
    def columns(self) -> int:
        """Size of the weight's other dimensions, flattened: ``e``."""
        return math.prod(self.column_shape)

    @property
    def input_key(self) -> Hashable:
        """Equal for products that contract the same input in the same way."""
        return self.x, self.x_dims

    @property
    def kind(self) -> Hashable:
        """Equal for products that can be columns and rows of one wide product."""
        return (
            self.free_shape,
            self.weight_first and bool(self.free_shape),
            dtype_of(self.x),
            dtype_of(self.weight),
            dtype_of(self.output),
            self.precision,
        )

    def input_matrix(self, x: Array) -> Array:
        """Returns the input as ``[*free, k]``."""
        free = [d for d in range(x.ndim) if d not in self.x_dims]
        x = lax.transpose(x, (*free, *self.x_dims))
        return x.reshape(*self.free_shape, self.rows)

    def weight_matrix(self, weight: Array) -> Array:
        """Returns the weight as ``[k, e]``."""
        free = [d for d in range(weight.ndim) if d not in self.weight_dims]
        weight = lax.transpose(weight, (*self.weight_dims, *free))
        return weight.reshape(self.rows, self.columns)

    def result(self, y: Array) -> Array:
        """Converts a result ``[*free, e]`` to the shape of the equation's result."""
        y = y.reshape(*self.free_shape, *self.column_shape)
        if self.weight_first:
            count, free = len(self.column_shape), len(self.free_shape)
            y = jnp.moveaxis(y, range(free, free + count), range(count))
        return y

    def part(self, start: int, stop: int) -> Callable[[Array, Array], Array]:
        """Returns the equation with some of the weight's columns, as a function.

        Args:
            start: The first column.
            stop: The end of the columns; the weight has one dimension of columns.

        Returns:
            A function of the equation's own operands.
        """
        [dim] = (
            d for d in range(len(shape_of(self.weight))) if d not in self.weight_dims
        )

        def multiply(left: Array, right: Array) -> Array:
            if self.weight_first:
                left = lax.slice_in_dim(left, start, stop, axis=dim)
            else:
                right = lax.slice_in_dim(right, start, stop, axis=dim)
            dims = (self.weight_dims, self.x_dims)
            return lax.dot_general(
                left,
                right,
                (dims if self.weight_first else dims[::-1], ((), ())),
                precision=self.precision,
                preferred_element_type=dtype_of(self.output),
            )

        return multiply

    def multiply(self, x: Array, weight: Array) -> Array:
        """Multiplies ``[*free, k]`` by ``[k, e]`` with the equation's precision."""
        return lax.dot_general(
            x,
            weight,
            (((x.ndim - 1,), (0,)), ((), ())),
            precision=self.precision,
            preferred_element_type=dtype_of(self.output),
        )


def match_product(node: Node, weights: Collection[Var]) -> Product | None:
    """Reads an equation as a product with a weight.

    Args:
        node: A node.
        weights: Variables that depend on parameters only.

    Returns:
        The product; None if the node is not a floating-point product of one input and
        one weight without batch dimensions.
    """
    dot = read_dot(node)
    if dot is None or not dot.is_plain or any(dot.batch_dims):
        return None
    left, right = node.invars
    left_dims, right_dims = dot.dims
    if not left_dims or not isinstance(left, Var) or not isinstance(right, Var):
        return None
    numbers = [left, right, *node.outvars]
    if not all(jnp.issubdtype(dtype_of(each), jnp.floating) for each in numbers):
        return None
    if (left in weights) == (right in weights):
        return None
    weight_first = left in weights
    if weight_first:
        left, right = right, left
        left_dims, right_dims = right_dims, left_dims
    pairs = sorted(zip(left_dims, right_dims, strict=True))
    assert isinstance(node, JaxprEqn), "a product is an equation"
    return Product(
        node=node,
        x=left,
        weight=right,
        x_dims=tuple(x for x, _ in pairs),
        weight_dims=tuple(w for _, w in pairs),
        weight_first=weight_first,
        precision=dot.precision,
    )


def _without(shape: Any, dims: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for d, size in enumerate(shape) if d not in dims)
