"""Cases of `gpu_counts`: passes of models, planned as on a host with a GPU."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np

import edbatch as eb
from edbatch.executor.program import ProgramShape
from edbatch.measuring import loss_of
from edbatch.models import get_workload
from edbatch.models.transition_parser import parse
from edbatch.plan import Plan
from edbatch.target import GPU
from edbatch.waves.wave import run_wave


@dataclass(frozen=True)
class Case:
    """A function to compile, and the minibatch or wave that it runs.

    Attributes:
        run: The function.
        arguments: Its arguments.
        expected: Leaves of its result, computed by another program on the CPU.
        program: The program's shape.
        chunks: Number of chunks that run.
        donated: Positions of the donated arguments.
    """

    run: Callable[..., Any]
    arguments: tuple[Any, ...]
    expected: list[Any]
    program: ProgramShape
    chunks: int
    donated: tuple[int, ...] = ()


def make_case(name: str, way: str, hidden: int, count: int) -> Case:
    """Makes a case.

    Args:
        name: A ready workload, ``"twenty-types"``, or ``"parser"``, which reads values.
        way: ``"forward"``, ``"gradient"``, or ``"wave"`` for a minibatch's first wave.
        hidden: Length of the model's states.
        count: Instances of the minibatch.

    Returns:
        The case.
    """
    model, params, instances = load(name, hidden, count)
    batched = eb.batch(model, params=params)
    if way == "wave":
        return _first_wave(batched, params, instances)
    plan, run = plan_for_gpu(batched, instances), function_of(batched, way)
    expected = jax.tree.leaves(jax.jit(run)(params, batched.plan(instances)))
    chunks = int(plan.trips.sum())
    return Case(run, (params, plan), expected, plan.shape.program, chunks)


def _first_wave(batched: Any, params: Any, instances: list[Any]) -> Case:
    with patch("edbatch.batched.choose_target", lambda *_: GPU):
        runner, start = batched.wave_runner(params)
    runs = [
        runner.start(k, lambda each=each: start(each))
        for k, each in enumerate(instances)
    ]
    runner.launch(runs)
    _, arguments = runner.calls()[0]
    packed, arenas, wave, key = arguments
    shape, program = wave.shape, wave.shape.program
    last = shape.length + shape.steps * len(program.loops)
    chunks = int(wave.integers[shape.length : last].sum())
    # The same wave, run by a program of loops.
    other = program.with_options(target=replace(GPU, control="loops"))
    looped = replace(wave, shape=replace(shape, program=replace(other, chunks=0)))
    expected = jax.tree.leaves(jax.jit(run_wave)(packed, arenas, looped, key))
    return Case(run_wave, arguments, expected, program, chunks, (1,))


def _cell(number: int) -> Any:
    """Makes one of twenty cells, all with different equations."""
    share = number / 20  # keeps states near 1, however many cells follow

    def unary(params: Any, state: Any) -> Any:
        return jnp.tanh(state @ params["weight"] + share)

    def binary(params: Any, left: Any, right: Any) -> Any:
        both = jnp.concatenate([left, right])
        return jnp.tanh(both @ params["weight"]) + share * left

    function = binary if number % 2 else unary
    function.__name__ = f"{function.__name__}_{number}"
    return eb.cell(function)


_CELLS = [_cell(number) for number in range(20)]


def twenty_types(params: Any, instance: Any) -> Any:
    """Runs cells chosen by number; odd-numbered cells join the last two states."""
    numbers, first = instance
    before = state = _CELLS[0](params[0], first)
    for number in numbers:
        own = params[number]
        if number % 2:
            before, state = state, _CELLS[number](own, state, before)
        else:
            before, state = state, _CELLS[number](own, state)
    return state


def load(name: str, hidden: int, count: int) -> tuple[Any, Any, list[Any]]:
    """Returns a model, its parameters and a minibatch."""
    rng = np.random.default_rng(0)
    if name == "parser":
        workload = get_workload("transition-parser")
        params = workload.init_params(jax.random.key(0), hidden)
        return parse, params, workload.sample(rng, count)
    if name != "twenty-types":
        workload = get_workload(name)
        params = workload.init_params(jax.random.key(0), hidden)
        return workload.model, params, workload.sample(rng, count)

    def array(*shape: int) -> Any:
        return jnp.asarray(rng.normal(size=shape) / np.sqrt(shape[0]), jnp.float32)

    params = [
        {"weight": array(hidden * (1 + number % 2), hidden)} for number in range(20)
    ]
    instances = [
        (rng.integers(1, 20, 12).tolist(), rng.normal(size=hidden).astype(np.float32))
        for _ in range(count)
    ]
    return twenty_types, params, instances


def function_of(batched: Any, way: str) -> Callable[[Any, Plan], Any]:
    """Returns the forward pass or the gradient of a batched function."""
    if way == "forward":
        run: Callable[[Any, Plan], Any] = batched.apply
        return run
    gradient: Callable[[Any, Plan], Any] = jax.grad(loss_of(batched))
    return gradient


def plan_for_gpu(batched: Any, instances: list[Any]) -> Plan:
    """Plans a minibatch as on a host whose default backend is a GPU."""
    with patch("edbatch.batched.choose_target", lambda *_: GPU):
        plan: Plan = batched.plan(instances)
    return plan
