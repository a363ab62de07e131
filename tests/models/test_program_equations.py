"""The neural module network against an independent float64 NumPy version."""

import jax
import numpy as np
import pytest
from equations import assert_close, sampled, wide

import edbatch as eb
from edbatch.data.programs import FUNCTIONS
from edbatch.models import get_workload

pytestmark = pytest.mark.usefixtures("quick_compiles")


def relu(x):
    return np.maximum(x, 0)


def convolved(layer, x):
    """A 3 by 3 convolution, pixel by pixel; matrix rows are in window order."""
    height, width, channels = x.shape
    W = layer["W"].reshape(3, 3, channels, -1)
    found = np.tile(layer["b"], (height, width, 1))
    for i, j, k, m in np.ndindex(height, width, 3, 3):
        y, z = i + k - 1, j + m - 1
        if 0 <= y < height and 0 <= z < width:
            found[i, j] += x[y, z] @ W[k, m]
    return found


def executed(params, program, k):
    """Feature map of function `k`, recursively."""
    name, value = program.functions[k], program.values[k]
    if name == "scene":
        features = np.asarray(program.features, np.float64)
        return relu(convolved(params["scene"], features))
    x = np.concatenate([executed(params, program, i) for i in program.inputs[k]], 2)
    module = params[name]
    mixed = x @ module["mix"]["W"] + module["mix"]["b"]
    if value is not None:
        mixed = mixed + params["embedding"][value]
    between = relu(mixed)
    skipped = between if len(program.inputs[k]) == 2 else x
    return relu(skipped + convolved(module["convolve"], between))


def test_module_network_computes_the_equations():
    model, params, programs = sampled("neural-module-network", count=80)
    # Few programs that cover all functions: the NumPy version is slow.
    needed, chosen = {*FUNCTIONS}, []
    for program in sorted(programs, key=len, reverse=True):
        if needed & {*program.functions}:
            needed -= {*program.functions}
            chosen.append(program)
    assert not needed
    params = jax.tree.map(lambda p: 0.3 * p, params)  # keeps the magnitude of the maps
    exact = wide(params)
    for program in chosen:
        x = executed(exact, program, len(program) - 1).mean(axis=(0, 1))
        expected = x @ exact["classify"]["W"] + exact["classify"]["b"]
        assert_close(model(params, program), expected)


def test_the_image_is_looked_at_once():
    workload = get_workload("neural-module-network")
    params = workload.init_params(jax.random.key(0), 2)
    batched = eb.batch(workload.model, params=params)
    programs = [
        each
        for each in workload.sample(np.random.default_rng(0), 20)
        if each.functions.count("scene") == 2
    ]
    for program in programs:
        # Both scenes share one node, and the classifier is one more.
        assert batched.record(program).num_nodes == len(program)
    assert programs
