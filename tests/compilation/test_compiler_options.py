"""Coarse programs are compiled with the options that this version of XLA knows."""

from dataclasses import replace

import jax
import numpy as np

import edbatch as eb
from edbatch.compilation.tier import coarse_options
from edbatch.target import CPU, GPU


def test_options_of_the_target_reach_the_compiler(monkeypatch):
    made = []
    jit = jax.jit

    def watched(function, **options):
        made.append(options.get("compiler_options"))
        return jit(function, **options)

    double = eb.cell(lambda params, x: 2 * x)
    batched = eb.batch(lambda params, x: double(params, x), params={})
    plan = batched.plan([1.0, 2.0])
    monkeypatch.setattr(jax, "jit", watched)
    function = eb.jit(lambda plan: batched.apply({}, plan), tiers="coarse")
    assert np.asarray(function(plan))[:2].tolist() == [2.0, 4.0]
    assert dict(CPU.coarse_options) in made


def test_unknown_options_are_left_out():
    double = eb.cell(lambda params, x: 2 * x)
    batched = eb.batch(lambda params, x: double(params, x), params={})
    plan = batched.plan([1.0, 2.0])
    more = (*CPU.coarse_options, ("xla_no_such_option", True))
    own = plan.on(replace(CPU, coarse_options=more))
    assert coarse_options([own, 3]) == dict(CPU.coarse_options)
    assert coarse_options(plan.on(GPU)) == {}
    assert coarse_options(3) == {}
