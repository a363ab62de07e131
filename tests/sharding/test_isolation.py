"""Also on several devices, the content of one instance does not affect another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from poisoned import EXPERTS, POISONS, chain, make_params, poison, sample_chains

import edbatch as eb

LENGTHS = (3, 5, 2, 4, 1, 3, 6)
AT = 3  # the poisoned instance


@pytest.mark.devices
def test_shards_are_isolated(quick_compiles):
    sharded = eb.batch(
        chain, params=make_params(), sizes=eb.Sizes(widths=(4,))
    ).sharded()

    @jax.jit
    def run(params, plan):
        def loss(params):
            outputs = sharded.apply(params, plan)
            return jnp.sin(outputs).sum(), outputs

        return jax.grad(loss, has_aux=True)(params)

    clean = sample_chains(1, LENGTHS, AT)
    grads, outputs = run(make_params(), sharded.plan(clean))
    others = np.arange(len(clean)) != AT
    for value in POISONS.values():
        dirty = [
            poison(each, value) if k == AT else each for k, each in enumerate(clean)
        ]
        found, found_outputs = run(make_params(), sharded.plan(dirty))
        np.testing.assert_array_equal(found_outputs[others], outputs[others])
        np.testing.assert_array_equal(found["table"][:-2], grads["table"][:-2])
        for k in range(EXPERTS - 1):
            for name, known in grads["experts"][k].items():
                np.testing.assert_array_equal(found["experts"][k][name], known)
