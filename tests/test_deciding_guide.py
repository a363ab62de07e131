"""The code of the guide on values runs, and says the truth about what it returns."""

import re

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
    # Two halves of eight waves each, which become one when few instances are left.
    assert 8 < report.waves < 2 * 8
    assert (int(nodes), int(most)) == (depths.sum(), 8 * 64)
    assert {depths.min(), depths.max()} == {1, 8}
    assert any(np.any(each["W"]) for each in names["gradients"]["layers"])
    lengths = [len(sentence) for sentence in names["sentences"]]
    assert [len(heads) for heads in names["heads"]] == lengths
