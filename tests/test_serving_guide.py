"""The guide to serving runs as it stands."""

import re


def test_the_guide_runs(project_root):
    text = (project_root / "docs" / "serve-a-model.md").read_text(encoding="utf-8")
    names: dict = {}
    for code in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(compile(code, "serve-a-model.md", "exec"), names)
    assert names["answer"]["model"] == "adaptive-1"
    assert len(names["answers"]) == 64
    assert names["stats"].answered == 64
    single = names["adaptive"](names["params"], names["inputs"][3])
    assert names["answers"][3]["depth"] == single["depth"]
