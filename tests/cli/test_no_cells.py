"""Commands on data with instances that call no cell, such as empty sentences."""

import json

import pytest

MODEL = """
import jax.numpy as jnp
import edbatch as eb

@eb.cell
def look_up(params, word):
    return params["table"][word]

def model(params, words):
    return [look_up(params, word) for word in words]

def params():
    return {"table": jnp.eye(4)}

def some():
    return 20 * [[0, 1], [], [2, 3, 1], [], [2]]

def none():
    return 20 * [[]]
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "nothing_called.py").write_text(MODEL)
    monkeypatch.syspath_prepend(tmp_path)

    def options(instances, *sizes):
        model = "--model", "nothing_called:model", "--params", "nothing_called:params"
        return *model, "--instances", f"nothing_called:{instances}", *sizes

    return options


SMALL = ("--batch-size", "1", "--minibatches", "8")
LEFT_OUT = "no call of a cell, and nothing to schedule: left out."


@pytest.mark.parametrize("options", [(), ("--memory",), ("--exact",)])
def test_compare(edbatch, own, options) -> None:
    policy = "--policy", "greedy"
    result = edbatch("compare", *own("some", *SMALL), *policy, *options, "--json")
    assert result.exit_code == 0, result.output
    assert LEFT_OUT in result.stderr
    assert json.loads(result.stdout)


@pytest.mark.parametrize("options", [(), ("--memory",)])
def test_compare_nothing(own, assert_fails, options) -> None:
    policy = "--policy", "greedy"
    message = "the instances of all minibatches call none; give instances that do"
    assert_fails(message, "compare", *own("none", *SMALL), *policy, *options)


def test_train_policy(edbatch, own, tmp_path, assert_fails) -> None:
    out = tmp_path / "policy.json"
    train = "train-policy", *own("some", *SMALL), "--train-anyway", "--trials", "3"
    result = edbatch(*train, "--out", out)
    assert result.exit_code == 0, result.output
    assert LEFT_OUT in result.stderr
    assert out.is_file()
    other = tmp_path / "other.json"
    message = "the instances of all minibatches call none"
    assert_fails(message, "train-policy", *own("none", *SMALL), "--out", other)
    assert not other.exists()


@pytest.mark.parametrize("plots", [False, True])
def test_explain(edbatch, own, tmp_path, plots) -> None:
    plot = ("--plot", tmp_path / "a.svg") if plots else ()
    result = edbatch("explain", *own("none", "--batch-size", "2"), "--measure", *plot)
    assert result.exit_code == 0, result.output
    assert not plots or (tmp_path / "a.svg").is_file()
