"""Gradients outside of compiled functions: a forward and a backward program.

What `jax.grad` calls outside of `jax.jit` it differentiates by itself, and runs its two
passes as programs of its own making: without options of XLA, and fine ones, which take
longest to compile. A rule of `jax.custom_vjp` is called with the arrays themselves
there, so that its passes can be compiled functions with tiers, as other calls are.

Gain (`experiments/first_gradient.py --eager`, docs/results.md): the first gradient of a
tree-LSTM comes after 2.6 s in place of 21.5.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import Array
from jax.custom_derivatives import SymbolicZero

from edbatch.compilation.record import Compilation
from edbatch.compilation.signature import StaticArguments, abstract_arguments
from edbatch.compilation.tier import Tier, in_tier, names_coarse
from edbatch.compilation.tiered_function import TieredFunction
from edbatch.gradient.reverse_mode import has_derivative, reverse_only_outside

Mask = tuple[bool, ...]


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True)
class ForwardPass:
    """What the backward pass reads.

    Attributes:
        taped: Arrays of the forward pass.
        tier: The tier of its program, and so of the backward pass.
    """

    taped: Any
    tier: Tier

    def tree_flatten(self) -> tuple[tuple[Any], Tier]:
        """Splits it into arrays and the tier."""
        return (self.taped,), self.tier

    @classmethod
    def tree_unflatten(cls, tier: Tier, parts: tuple[Any]) -> "ForwardPass":
        """Builds it from its parts."""
        return cls(*parts, tier)


class _BackwardPass(TieredFunction):
    """A backward pass, for plans that name the tier of its program."""

    def signatures(self) -> list[tuple[Any, ...]]:
        """Returns the arguments of each signature so far, abstract ones."""
        with self._lock:
            keys = list(self._programs)
        return [
            self._static.join(*abstract_arguments(each), each.static)[0]
            for each in keys
        ]

    def compile_ahead(self, *args: Any) -> None:
        """Compiles for a call, in the background thread, which is the caller."""
        self._compile_ahead(self._find(args, {}), background=True)


class TieredGradient:
    """A function of plans as `jax.grad` calls it outside of compiled functions.

    Both passes run by the same tier: the fine programs replace the coarse ones once
    both are compiled.

    Args:
        function: The function, compiled; run where nothing is differentiated.
        forward: Returns, of the same arguments, its results and what `again` reads.
        again: Of what `forward` returned and the arguments, stands for the function
            where that is differentiated.
        name: The function's name in reports.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        forward: Callable[..., tuple[Any, Any]],
        again: Callable[..., Any],
        name: str,
    ) -> None:
        self._again = again
        self._forward = TieredFunction(
            _with_tier(forward),
            name=f"{name}, forward pass",
            before_swap=self._compile_backward,
        )
        static, backward = StaticArguments((0,)), f"{name}, backward pass"
        self._backward: dict[Tier, _BackwardPass] = {
            tier: _BackwardPass(self._pulled_back, static, tiers="fine", name=backward)
            for tier in ("coarse", "fine")
        }

        def call(structure: Any, *leaves: Any) -> Any:
            return function(*jax.tree.unflatten(structure, leaves))

        self._call: Any = jax.custom_vjp(call, nondiff_argnums=(0,))
        self._call.defvjp(self._run_forward, self._run_backward, symbolic_zeros=True)

    def __call__(self, *args: Any) -> Any:
        """Calls the function; gradients run as compiled programs.

        Args:
            *args: Its arguments, pytrees with a plan among them.

        Returns:
            What it returns.
        """
        leaves, structure = jax.tree.flatten(args)
        return self._call(structure, *reverse_only_outside(leaves))

    def compilations(self) -> tuple[Compilation, ...]:
        """Returns the records of what was compiled for both passes."""
        found = self._forward.compilations()
        for each in self._backward.values():
            found += each.compilations()
        return found

    def _run_forward(self, structure: Any, *leaves: Any) -> tuple[Any, Any]:
        args = jax.tree.unflatten(structure, [each.value for each in leaves])
        by = tuple(each.perturbed and has_derivative(each.value) for each in leaves)
        results, found = self._forward(*args)
        return results, (args, found, _Static(by))

    def _run_backward(self, _: Any, residuals: Any, cotangents: Any) -> Any:
        args, found, by = residuals
        known = jax.tree.leaves(cotangents)
        read = tuple(not _is_zero(each) for each in known)
        bars: list[Any] = [None] * len(by.value)
        if any(read):
            # Programs are traced for a mesh, and JAX calls this rule under its own.
            static = by.value, read, jax.sharding.get_abstract_mesh()
            some = [each for each, is_read in zip(known, read, strict=True) if is_read]
            args = in_tier(args, found.tier)
            backward = self._backward[found.tier]
            with jax.sharding.use_abstract_mesh(static[-1]):
                own = iter(backward(static, found.taped, some, *args))
            bars = [next(own) if is_by else None for is_by in by.value]
        return tuple(bars)

    def _pulled_back(
        self, static: tuple[Mask, Mask, Any], taped: Any, cotangents: Any, *args: Any
    ) -> list[Array]:
        """Returns the cotangents of the leaves that one differentiates by."""
        by, read, _ = static
        leaves, structure = jax.tree.flatten(args)

        def outputs(own: Sequence[Any]) -> list[Any]:
            given = iter(own)
            mixed = [
                next(given) if is_by else leaf
                for leaf, is_by in zip(leaves, by, strict=True)
            ]
            found = self._again(taped, *jax.tree.unflatten(structure, mixed))
            pairs = zip(jax.tree.leaves(found), read, strict=True)
            return [each for each, is_read in pairs if is_read]

        own = [leaf for leaf, is_by in zip(leaves, by, strict=True) if is_by]
        _, pull = jax.vjp(outputs, own)
        [bars] = pull(cotangents)
        found: list[Array] = bars
        return found

    def _compile_backward(self, *args: Any) -> None:
        """Compiles the fine backward passes of a signature that had coarse ones."""
        own = _avals(args)
        for each in self._backward["coarse"].signatures():
            static, coarse_taped, cotangents, *coarse = each
            if _avals(in_tier(tuple(coarse), "fine")) != own:
                continue
            _, found = self._forward.trace(*args).out_info
            taped = _committed_as(found.taped, coarse_taped)
            with jax.sharding.use_abstract_mesh(static[-1]):
                self._backward["fine"].compile_ahead(static, taped, cotangents, *args)


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Static:
    """What is no array, among residuals."""

    value: Mask


def _with_tier(forward: Callable[..., tuple[Any, Any]]) -> Callable[..., Any]:
    def run(*args: Any) -> tuple[Any, ForwardPass]:
        results, taped = forward(*args)
        tier: Tier = "coarse" if names_coarse(args) else "fine"
        return results, ForwardPass(taped, tier)

    return run


def _is_zero(cotangent: Any) -> bool:
    if isinstance(cotangent, SymbolicZero):
        return True
    return bool(cotangent.dtype == jax.dtypes.float0)


def _avals(args: Any) -> Any:
    leaves, structure = jax.tree.flatten(args)
    return structure, [(each.shape, each.dtype, each.sharding) for each in leaves]


def _committed_as(shapes: Any, others: Any) -> Any:
    """Returns shapes that lie where others do, if these are committed to a device."""
    places = [each.sharding for each in jax.tree.leaves(others)]
    place = next(filter(None, places), None)
    return jax.tree.map(
        lambda each: jax.ShapeDtypeStruct(
            each.shape, each.dtype, weak_type=each.weak_type, sharding=place
        ),
        shapes,
    )
