"""One process of several: python job.py ADDRESS PROCESSES PROCESS; run by the tests."""

import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import trees

import edbatch as eb
from edbatch.sharding import collectives
from edbatch.sharding.row_sums import summed_as_rows


def loss(params, plan, apply):
    hidden, memory = apply(params, plan)
    place = jnp.arange(1.0, len(hidden) + 1)
    return (place[:, None] * (hidden + memory**2)).sum()


def raises(text):
    return pytest.raises(eb.PlanError, match=re.escape(text))


def main(address, processes, process):
    jax.distributed.initialize(
        address,
        int(processes),
        int(process),
        cluster_detection_method="deactivate",
        initialization_timeout=60,
        heartbeat_timeout_seconds=20,
        shutdown_timeout_seconds=20,
    )
    assert (len(jax.devices()), len(jax.local_devices())) == (int(processes), 1)
    sizes = eb.Sizes(widths=(4, 16))
    small = trees.make_params()
    large = small | {"table": jnp.tile(small["table"], (400, 1))}
    for seed, params in ((0, small), (1, large)):
        collectives.MOST_BYTES = 1000 if seed else 1 << 20
        batched = eb.batch(trees.encode, "depth", params=params, sizes=sizes)
        sharded = batched.sharded()
        instances = trees.sample_trees(seed, 5)
        alone = jax.value_and_grad(loss)(params, batched.plan(instances), batched.apply)
        plan = sharded.plan(instances)
        assert len(summed_as_rows(params, plan)) == seed
        together = jax.value_and_grad(loss)(
            sharded.replicate(params), plan, sharded.apply
        )
        for own, other in zip(
            jax.tree.leaves((together, sharded.apply(params, plan))),
            jax.tree.leaves((alone, batched(params, instances))),
            strict=True,
        ):
            np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-5)
    others = [each for each in jax.devices() if each.process_index != int(process)]
    with raises(f"process, {process} of {processes}; call jax.distributed"):
        batched.sharded(jax.sharding.Mesh(np.array(others), ("data",)))
    searching = eb.batch(trees.encode, search=1)
    searching.sharded(jax.sharding.Mesh(np.array(jax.local_devices()), ("data",)))
    with raises(
        "but what a search with a time limit finds depends on the speed of the"
    ):
        searching.sharded()
    print(f"process {process} of {processes}: results agree")


if __name__ == "__main__":
    main(*sys.argv[1:])
