"""The guide to serving runs as written."""

import json
import re
import shlex
import urllib.request

import numpy as np
import pytest
from served_process import ServeProcess

BLOCK = r"```(\w*)\n(.*?)```"


@pytest.fixture(scope="module")
def parts(project_root):
    """Language and text of each block, before and after the heading on HTTP."""
    text = (project_root / "docs" / "serve-a-model.md").read_text(encoding="utf-8")
    own, _, rest = text.partition("\n## Over HTTP\n")
    return [
        re.findall(BLOCK, part, flags=re.DOTALL)
        for part in (own, rest.partition("\n## ")[0])
    ]


def test_the_guide_runs(parts):
    names: dict = {}
    for _, code in parts[0]:
        exec(compile(code, "serve-a-model.md", "exec"), names)
    assert names["answer"]["model"] == "adaptive-1"
    assert len(names["answers"]) == 64
    assert names["stats"].answered == 64
    single = names["adaptive"](names["params"], names["inputs"][3])
    assert names["answers"][3]["depth"] == single["depth"]


def test_the_part_about_http_runs(parts, tmp_path, monkeypatch):
    (_, try_it), (_, module), (_, training), (_, serve), (_, ask) = parts[1]
    assert try_it == "edbatch serve --workload tree-lstm\n"
    (tmp_path / "my_service.py").write_text(module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    names: dict = {}
    exec(compile(training, "serve-a-model.md", "exec"), names)
    edbatch, command, *options = shlex.split(serve)
    assert (edbatch, command, options[-2:]) == ("edbatch", "serve", ["--port", "8000"])
    server = ServeProcess(tmp_path, *options[:-2])
    try:
        status, answer = asked(server, ask)
        assert server.get("/schema")[0] == 200
        refused = server.run({"children": [{"word": 1}]})
        server.send_signal()
        assert server.wait() == 0
    finally:
        server.end()
    own = names["my_service"]
    tree = own.Tree(0, (own.Tree(7), own.Tree(42)))
    expected = own.sentiment(names["trained"], tree)["probabilities"]
    assert status == 200
    np.testing.assert_allclose(answer["output"]["probabilities"], expected, rtol=1e-4)
    assert refused[0] == 422
    assert refused[1]["error"]["message"].endswith("a node has two children, or none")


def asked(server, command):
    """Sends the request that a curl command would send."""
    curl, url, header, kind, data, body = shlex.split(command.replace("\\\n", " "))
    assert (curl, header, data) == ("curl", "-H", "-d")
    name, value = kind.split(": ")
    url = url.replace(":8000", f":{server.port}")
    request = urllib.request.Request(url, body.encode(), {name: value})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.status, json.loads(answer.read())
