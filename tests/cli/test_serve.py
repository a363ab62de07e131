"""`edbatch serve`: what it loads, and its errors when loading fails."""

import json
import os
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path

import jax
import numpy as np
import pytest
from flax.serialization import msgpack_serialize, to_bytes
from served_process import TESTS

import edbatch as eb
from edbatch.cli.one_sentence import CommandError
from edbatch.cli.params_file import save_params
from edbatch.cli.served_model import load_params, load_service
from edbatch.cli.served_workload import load_workload, workload_service
from edbatch.data import Tree
from edbatch.http import Service, as_json
from edbatch.http.contract import Contract
from edbatch.http.model_error import InputError
from edbatch.http.refusal import Refusal
from edbatch.models import WORKLOADS, get_workload


def model(params, x):
    return x


def init(key):
    return {
        "layers": [{"W": np.zeros((2, 2), np.float32)} for _ in range(2)],
        "exit": {"b": np.ones(3, np.float32)},
    }


TREE = {
    "layers": [{"W": np.arange(4.0).reshape(2, 2)}, {"W": np.eye(2) / 2}],
    "exit": {"b": np.array([1.0, 2.0, 3.0])},
}
TREE = jax.tree.map(np.float32, TREE)
OWN = Service(model, init_params=init)
WITHOUT = Service(model)


def assert_equal(found, expected=TREE):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(
        jax.tree.leaves(found), jax.tree.leaves(expected), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def written(folder: Path, kind: str) -> Path:
    if kind == "orbax":
        import orbax.checkpoint as ocp

        with ocp.StandardCheckpointer() as writer:
            writer.save(folder / "kept", TREE)
        return folder / "kept"
    path = folder / f"p.{kind}"
    if kind == "npz":
        save_params(path, TREE, None)
    else:
        path.write_bytes(to_bytes(TREE))
    return path


@pytest.mark.parametrize("kind", ["npz", "msgpack", "orbax"])
def test_parameters_of_any_format(tmp_path, kind):
    path = written(tmp_path, kind)
    assert_equal(load_params(OWN, path, 0))
    assert_equal(load_params(WITHOUT, path, 0))


def test_parameters_that_a_service_makes_or_reads(tmp_path):
    assert_equal(load_params(OWN, None, 0), init(None))
    path = tmp_path / "own.txt"
    path.write_text("2.5")
    service = Service(model, load_params=lambda path: float(path.read_text()))
    assert load_params(service, path, 0) == 2.5
    with pytest.raises(CommandError, match="has no init_params, so it needs"):
        load_params(WITHOUT, None, 0)
    with pytest.raises(CommandError, match="does not exist"):
        load_params(OWN, tmp_path / "none.npz", 0)

    def forgetful(path):
        raise KeyError("weights")

    with pytest.raises(CommandError, match=r"load_params, .* raised KeyError"):
        load_params(Service(model, load_params=forgetful), path, 0)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "cannot be read as one"),
        (b"\xff\xff\xff", "cannot be read as one"),
        (msgpack_serialize({"a": 1})[:-1], "cannot be read as one"),
        (msgpack_serialize(np.ones(2)), "no parameters by name"),
        (to_bytes({**TREE, "exit": {}}), "has no array 'exit.b'"),
        (to_bytes({**TREE, "exit": {"b": np.ones(4)}}), r"shape \[4\].*init_params"),
    ],
)
def test_files_that_do_not_fit(tmp_path, content, text):
    path = tmp_path / "p.msgpack"
    path.write_bytes(content)
    with pytest.raises(CommandError, match=text):
        load_params(OWN, path, 0)


def test_what_a_model_may_be(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert load_service("served_jobs:service").name == "jobs"
    assert load_service("served_jobs:make_service").name == "cold jobs"
    assert load_service("served_jobs:model").name == "model"
    assert isinstance(load_service("served_jobs:batched").model, eb.batched.Batched)
    for name, text in (
        ("served_jobs:EXAMPLES", r"EXAMPLES' is \[\{"),
        ("served_jobs:Job", "Job' is <class"),
        ("served_jobs:not_a_service", "it returned 7"),
        ("served_jobs:servise", "did you mean 'service'"),
    ):
        with pytest.raises(CommandError, match=text):
            load_service(name)


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_reads_its_own_instances(name):
    service = workload_service(get_workload(name), None)
    contract = Contract(service, 128)
    sample = get_workload(name).sample(np.random.default_rng(0), 64)
    found = contract.sample
    assert [type(each) for each in found] == [type(each) for each in sample]
    assert json.dumps(as_json(found)) == json.dumps(as_json(sample))


def test_the_words_of_a_workload(tmp_path, treebank):
    workload = get_workload("tree-lstm", vocabulary_size=20)
    text = workload.read_text([treebank])
    vocabulary = workload.vocabulary(text)
    params = workload.init_params(jax.random.key(1), 4)
    path = tmp_path / "p.npz"
    save_params(path, params, vocabulary)
    service, found = load_workload("tree-lstm", path, 128, 0)
    assert_equal(found, params)
    contract = Contract(service, 64)

    def read(word):
        body = json.dumps({"input": {"label": "NN", "word": word}})
        return contract.read(body.encode()).instance

    [expected] = workload.number([Tree("NN", "dog")], vocabulary)
    assert read("dog") == expected and read("dog").word > 0
    assert read("never seen").word == 0
    assert read(19).word == 19
    for word in (20, -1, 2**70):
        with pytest.raises(InputError, match="numbers from 0 to 19"):
            read(word)
    with pytest.raises(Refusal, match=r"input\.word"):
        read(True)
    bare = Contract(workload_service(workload, None), 64)
    with pytest.raises(InputError, match="came without a vocabulary"):
        bare.read(b'{"input": {"word": "dog"}}')


def test_options_that_do_not_fit(assert_fails, tmp_path, monkeypatch):
    tree = ("serve", "--workload", "tree-lstm")
    free = ("--port", "0")
    assert_fails("takes one of --model", "serve", *free)
    assert_fails("takes one of --model", *tree, "--model", "a:b", *free)
    for own, text in (
        ((*tree, "--params", "a.npz", "--hidden", 4), "those of --params have one"),
        ((*tree, "--params", "a.npz", "--seed", 4), "those of --params are not drawn"),
        (("serve", "--model", "a:b", "--hidden", 4), "service of --model decides it"),
    ):
        assert_fails(f"applies to random parameters only, but .*{text}", *own, *free)
    assert_fails("did you mean 'debug'", *tree, "--log-level", "debugg")
    assert_fails("max_depth|max-depth", *tree, "--max-depth", 1000)
    assert_fails("did you mean 'tree-lstm'", "serve", "--workload", "tree-lstn", *free)
    assert_fails("an .npz file", *tree, "--params", tmp_path / "p.msgpack", *free)
    assert_fails("unknown|known are|did you mean", *tree, "--policy", "agendaa", *free)
    for policy, text in (("none.json", "none.json"), (tmp_path, "cannot be|directory")):
        assert_fails(text, *tree, *free, "--hidden", 4, "--serving-policy", policy)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert_fails(f"port {port} of 127.0.0.1 cannot be used", *tree, "--port", port)
    assert_fails("--host takes a name", *tree, "--host", "no.such.host.invalid", *free)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert_fails(r"uvicorn, which .*pip install 'edbatch\[serve\]'", *tree, *free)


def test_a_warm_up_that_fails_ends_the_command(tmp_path):
    script = Path(sysconfig.get_path("scripts")) / "edbatch"
    done = subprocess.run(
        [script, "serve", "--model", "served_jobs:poisoned", "--port", "0"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "Error: the warm-up by the examples failed: the model rejected this input:"
        " ValueError: told to fail (for instance 0 of the sample)"
    )
