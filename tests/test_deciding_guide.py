"""The code of `generate-and-decide.md` runs, and the guide states its results."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb

pytestmark = pytest.mark.usefixtures("quick_compiles")


def test_the_guide_runs_as_it_stands(project_root):
    text = (project_root / "docs" / "generate-and-decide.md").read_text("utf-8")
    names: dict = {}
    with eb.use_tiers("coarse"):
        for code in re.findall(r"^```python\n(.*?)^```$", text, flags=re.DOTALL | re.M):
            exec(compile(code, "generate-and-decide.md", "exec"), names)
    depths = np.asarray(names["depths"])
    assert names["ps"].shape == (64, 4)
    assert depths[0] == names["depth"]
    np.testing.assert_allclose(names["ps"][0], names["p"], rtol=1e-4, atol=1e-6)
    [(nodes, most)] = re.findall(r"run (\d+) of (\d+) layers' worth", text)
    report = names["rollout"].report
    assert report.nodes == int(nodes) * 2
    # Two halves of eight waves each, merged into one when few instances are left.
    assert 8 < report.waves < 2 * 8
    assert (int(nodes), int(most)) == (depths.sum(), 8 * 64)
    assert {depths.min(), depths.max()} == {1, 8}
    assert any(np.any(each["W"]) for each in names["gradients"]["layers"])
    _check_policy_gradient(names)
    lengths = [len(sentence) for sentence in names["sentences"]]
    assert [len(heads) for heads in names["heads"]] == lengths


def _check_policy_gradient(names):
    """The REINFORCE gradient equals the unbatched model's along the same paths."""
    inputs, rewards, key = names["inputs"][:6], names["rewards"], names["key"]

    def total(params, instances):
        found = 0.0
        for k, each in enumerate(instances):
            with eb.cell_keys(key, k):
                _, log_ps = names["sample"](params, each)
            assert len(log_ps) == names["log_ps"].lengths[k]
            found += (rewards[k] - rewards.mean()) * sum(log_ps)
        return -found / len(names["inputs"])

    expected = jax.grad(total)(names["params"], inputs)

    def batched(params):
        found = names["sampled"].apply(params, names["plan"], rng=key)[1]
        totals = found.to_padded(8)[0].sum(1)[: len(inputs)]
        own = rewards[: len(inputs)] - rewards.mean()
        return -jnp.sum(own * totals) / len(names["inputs"])

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
        jax.grad(batched)(names["params"]),
        expected,
    )
    assert np.any(names["policy_gradient"]["gate"])
