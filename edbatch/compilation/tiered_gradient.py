"""Gradients outside of compiled functions: a forward and a backward program.

Outside of `jax.jit`, `jax.grad` differentiates a jitted function and compiles the two
passes itself: without edbatch's XLA options, and always as fine programs, which take
longest to compile. A `jax.custom_vjp` rule receives concrete arrays in this case, so
its passes can be compiled functions with tiers, like other calls.

Gain (`experiments/first_gradient.py --eager`, docs/results.md): the first gradient of a
tree-LSTM takes 2.6 s instead of 21.5.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.custom_derivatives import SymbolicZero

from edbatch.cell.jaxpr import is_tracing
from edbatch.compilation.jax_settings import settings, under
from edbatch.compilation.program import Programs
from edbatch.compilation.record import Compilation
from edbatch.compilation.settings import SETTINGS
from edbatch.compilation.signature import StaticArguments
from edbatch.compilation.tier import Tier, in_tier, names_coarse
from edbatch.compilation.tiered_function import TieredFunction, is_disabled
from edbatch.gradient.reverse_mode import has_derivative, reverse_only_outside

_ADVICE = (
    "compute one such gradient, or make the step a function of eb.jit, which has"
    " .warm_up"
)


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True)
class TieredResiduals:
    """Residuals for the backward pass, with the tier that made them.

    Attributes:
        residuals: Arrays of the forward pass.
        tier: Tier of the forward program, and therefore of the backward one.
    """

    residuals: Any
    tier: Tier

    def tree_flatten(self) -> tuple[tuple[Any], Tier]:
        """Splits the residuals into arrays and the tier."""
        return (self.residuals,), self.tier

    @classmethod
    def tree_unflatten(cls, tier: Tier, parts: tuple[Any]) -> "TieredResiduals":
        """Rebuilds the residuals from arrays and the tier."""
        return cls(*parts, tier)


@jax.tree_util.register_static
@dataclass(frozen=True)
class _ForwardCall:
    """Static facts about a forward call that its backward pass needs.

    Attributes:
        perturbed: Mask of the argument leaves to differentiate with respect to.
        settings: JAX settings of the forward call.
        mesh: Mesh of the forward call.
    """

    perturbed: tuple[bool, ...]
    settings: tuple[Any, ...]
    mesh: "_Mesh"


@dataclass(frozen=True)
class _Mesh:
    """The mesh that a pass runs under.

    The mesh is part of JAX's cache keys, and JAX sets a different one while it calls a
    backward pass. So each pass sets its own mesh, and compiling ahead of calls sets the
    same one.

    Attributes:
        mesh: The mesh.
    """

    mesh: Any


@dataclass(frozen=True)
class _Derivative(_Mesh):
    """Static description of the derivative that a backward pass computes.

    Attributes:
        perturbed: Mask of the argument leaves to differentiate with respect to.
        read: Mask of the result leaves that have a cotangent.
    """

    perturbed: tuple[bool, ...]
    read: tuple[bool, ...]

    def __repr__(self) -> str:
        """Returns the indices of the differentiated leaves."""
        outputs, inputs = np.flatnonzero(self.read), np.flatnonzero(self.perturbed)
        return f"of outputs {outputs.tolist()} by inputs {inputs.tolist()}"


class _Pass(TieredFunction):
    """A forward or backward pass; its first argument is static and names the mesh."""

    def __call__(self, mesh: _Mesh, *args: Any) -> Any:
        """Calls the function, under the mesh."""
        with jax.sharding.use_abstract_mesh(mesh.mesh):
            return super().__call__(mesh, *args)

    def _compile_ahead(self, programs: Programs, *, background: bool) -> None:
        [(_, mesh)], _ = programs.key.static
        with jax.sharding.use_abstract_mesh(mesh.mesh):
            super()._compile_ahead(programs, background=background)


class _ForwardPass(_Pass):
    """A forward pass whose coarse program can be called explicitly."""

    def run_coarse(self, mesh: _Mesh, *args: Any) -> Any:
        """Calls the coarse program, even if the fine one is compiled."""
        args = mesh, *args
        with jax.sharding.use_abstract_mesh(mesh.mesh):
            programs = self._find(args, {})
            with programs.lock:
                if programs.coarse is None:
                    self._check_stance(programs)
                    programs.coarse, _, _ = self._compiler.compile(
                        programs, "coarse", args, {}
                    )
            programs.runs.coarse += 1
            return programs.coarse(*args)


class _BackwardPass(_Pass):
    """A backward pass, for plans that name the tier of its program."""

    def runs_fine(self, *args: Any) -> bool:
        """Whether to run the fine program: it is compiled, or the call must wait.

        If not, starts its compilation in the background, unless that has started.
        """
        if is_tracing() or is_disabled():
            return True
        programs = self._find(args, {})
        if programs.is_fine or SETTINGS.tiers != "auto" or jax.process_count() > 1:
            return True
        with programs.lock:
            if programs.is_fine:
                return True
            if programs.refining is None:
                with jax.sharding.use_abstract_mesh(args[0].mesh):
                    stored = self._compiler.find_stored_fine(programs, args, {})
                    if stored is not None:
                        programs.fine = stored
                        return True
                programs.refining = self._submit(programs)
        return False


class TieredGradient:
    """A function of parameters, a plan and a key, for `jax.grad` outside of `jax.jit`.

    Both passes run in the same tier. Fine backward passes are compiled after the fine
    forward pass. Until a fine backward pass is compiled, calls that need it run the
    coarse programs of both passes.

    Args:
        function: The compiled function, called when nothing is differentiated.
        forward: Maps the same arguments to results and residuals.
        from_residuals: Takes the residuals, then the arguments. It has the derivatives
            of `function`; the values of its results are ignored.
        name: The function's name in reports.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        forward: Callable[..., tuple[Any, Any]],
        from_residuals: Callable[..., Any],
        name: str,
    ) -> None:
        self._from_residuals = from_residuals
        self._forward = _ForwardPass(
            _with_tier(forward),
            StaticArguments((0,)),
            name=f"{name}, forward pass",
            keeps_coarse=True,
            advice=_ADVICE,
        )
        self._backward: dict[Tier, _BackwardPass] = {
            tier: _BackwardPass(
                self._pulled_back,
                StaticArguments((0,)),
                tiers="fine",  # the plans name their tier
                name=f"{name}, backward pass",
                advice=_ADVICE,
            )
            for tier in ("coarse", "fine")
        }

        def call(structure: Any, *leaves: Any) -> Any:
            return function(*jax.tree.unflatten(structure, leaves))

        self._call: Any = jax.custom_vjp(call, nondiff_argnums=(0,))
        self._call.defvjp(self._run_forward, self._run_backward, symbolic_zeros=True)

    def __call__(self, *args: Any) -> Any:
        """Calls the function; gradients run as compiled programs.

        Args:
            *args: The function's arguments; some of their leaves may be tracers.

        Returns:
            The function's result.
        """
        leaves, structure = jax.tree.flatten(args)
        return self._call(structure, *reverse_only_outside(leaves))

    def compilations(self) -> tuple[Compilation, ...]:
        """Returns the compilation records of both passes."""
        found = self._forward.compilations()
        for each in self._backward.values():
            found += each.compilations()
        return found

    def _run_forward(self, structure: Any, *leaves: Any) -> tuple[Any, Any]:
        values = [_kept(each.value) for each in leaves]
        args = jax.tree.unflatten(structure, values)
        perturbed = tuple(
            each.perturbed and has_derivative(each.value) for each in leaves
        )
        mesh = _Mesh(jax.sharding.get_abstract_mesh())
        results, found = self._forward(mesh, *args)
        return results, (args, found, _ForwardCall(perturbed, settings(), mesh))

    def _run_backward(self, _: Any, kept: Any, cotangents: Any) -> Any:
        args, found, call = kept
        bars: list[Any] = [None] * len(call.perturbed)
        known = jax.tree.leaves(cotangents)
        read = tuple(not _is_zero(each) for each in known)
        if any(read):
            mesh = jax.sharding.get_abstract_mesh()
            derivative = _Derivative(mesh, call.perturbed, read)
            some = [each for each, is_read in zip(known, read, strict=True) if is_read]
            own = iter(self._pull(derivative, found, some, args, call))
            bars = [next(own) if each else None for each in call.perturbed]
        return tuple(bars)

    def _pull(
        self,
        derivative: _Derivative,
        found: TieredResiduals,
        cotangents: list[Array],
        args: tuple[Any, ...],
        forward: _ForwardCall,
    ) -> Any:
        """Runs the backward pass in the forward pass's tier, or both passes coarse.

        Args:
            derivative: The derivative to compute.
            found: Residuals of the forward pass.
            cotangents: Cotangents of the results.
            args: The arguments of the forward pass.
            forward: Settings and mesh that the forward pass ran under.

        Returns:
            The cotangents of the arguments.
        """
        if found.tier == "fine":
            fine = self._backward["fine"]
            inputs = derivative, found.residuals, cotangents, *args
            if fine.runs_fine(*inputs):
                return fine(*inputs)
            with under(forward.settings):
                _, found = self._forward.run_coarse(forward.mesh, *args)
        args = in_tier(args, "coarse")
        return self._backward["coarse"](derivative, found.residuals, cotangents, *args)

    def _pulled_back(
        self,
        derivative: _Derivative,
        residuals: Any,
        cotangents: list[Array],
        params: Any,
        plan: Any,
        rng: Any,
    ) -> list[Array]:
        """Returns the cotangents of the perturbed leaves."""
        perturbed, read = derivative.perturbed, derivative.read
        leaves, structure = jax.tree.flatten((params, plan, rng))

        def outputs(own: Sequence[Any]) -> list[Any]:
            given = iter(own)
            mixed = [
                next(given) if is_perturbed else leaf
                for leaf, is_perturbed in zip(leaves, perturbed, strict=True)
            ]
            args = jax.tree.unflatten(structure, mixed)
            results = jax.tree.leaves(self._from_residuals(residuals, *args))
            return [
                each for each, is_read in zip(results, read, strict=True) if is_read
            ]

        pairs = zip(leaves, perturbed, strict=True)
        _, pull = jax.vjp(
            outputs, [leaf for leaf, is_perturbed in pairs if is_perturbed]
        )
        [bars] = pull(cotangents)
        found: list[Array] = bars
        return found


def call_untraced(function: Callable[..., Any], *args: Any) -> Any:
    """Calls a function inside `jax.grad` as if it were outside.

    Args:
        function: The function.
        *args: Its arguments. They must not be tracers: no gradient is taken with
            respect to them.

    Returns:
        Its result.
    """
    leaves, structure = jax.tree.flatten(args)

    # JAX evaluates `call` outside of the transformation if no argument is perturbed.
    @jax.custom_vjp
    def call(*leaves: Any) -> Any:
        return function(*jax.tree.unflatten(structure, leaves))

    call.defvjp(call, lambda *_: (None,) * len(leaves))
    return call(*leaves)


def _with_tier(forward: Callable[..., tuple[Any, Any]]) -> Callable[..., Any]:
    def run(
        mesh: _Mesh, params: Any, plan: Any, rng: Any
    ) -> tuple[Any, TieredResiduals]:
        results, residuals = forward(params, plan, rng)
        tier: Tier = "coarse" if names_coarse(plan) else "fine"
        return results, TieredResiduals(residuals, tier)

    return run


def _kept(value: Any) -> Any:
    """Copies a NumPy array to JAX: its owner may change it before the backward pass.

    NumPy makes the copy: `jnp.array` shares the memory of arrays that JAX has wrapped,
    if aligned, and copies large arrays later, when they may have changed already.
    """
    return jnp.asarray(value.copy()) if isinstance(value, np.ndarray) else value


def _is_zero(cotangent: Any) -> bool:
    if isinstance(cotangent, SymbolicZero):
        return True
    return bool(cotangent.dtype == jax.dtypes.float0)
