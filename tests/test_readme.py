"""The example in the README runs, and says the truth about what it returns."""

import re

import jax


def test_the_example_runs(project_root):
    text = (project_root / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["states"].shape == (3, 8)
    assert jax.tree.map(lambda x: x.shape, names["grads"]) == {
        "embedding": (8, 8),
        "weights": (8, 16),
    }


def test_the_commands_exist(project_root):
    text = (project_root / "README.md").read_text(encoding="utf-8")
    makefile = (project_root / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", text, flags=re.MULTILINE):
        assert f"\n{target}: " in makefile
