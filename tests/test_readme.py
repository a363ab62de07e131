"""The examples in the README run, and return what the README says."""

import re

import jax


def test_the_examples_run(project_root):
    text = (project_root / "README.md").read_text(encoding="utf-8")
    names: dict = {}
    for code in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(compile(code, "README.md", "exec"), names)
    assert names["states"].shape == (3, 8)
    assert jax.tree.map(lambda x: x.shape, names["grads"]) == {
        "embedding": (8, 8),
        "weights": (8, 16),
    }
    assert names["ps"].shape == (64, 4)
    depths = names["depths"]
    assert depths.shape == (64,) and depths.min() < depths.max()


def test_the_commands_exist(project_root):
    text = (project_root / "README.md").read_text(encoding="utf-8")
    makefile = (project_root / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", text, flags=re.MULTILINE):
        assert f"\n{target}: " in makefile
