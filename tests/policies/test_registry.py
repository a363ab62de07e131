import re
from pathlib import Path

import pytest

from edbatch.errors import PolicyError
from edbatch.policies import (
    Agenda,
    Depth,
    Greedy,
    StateMachine,
    get_policy,
    load_policy,
    zoo_names,
)
from edbatch.schedule import FrontierPolicy
from edbatch.schedule.examples import chain

MACHINE = StateMachine(chain("ab").type_keys, "max")


@pytest.mark.parametrize(
    ("name", "kind"), [("depth", Depth), ("agenda", Agenda), ("greedy", Greedy)]
)
def test_heuristics_by_name(name, kind):
    assert isinstance(get_policy(name), kind)


@pytest.mark.parametrize("name", zoo_names())
def test_ready_made_policies_by_name(name):
    policy = get_policy(f"zoo:{name}")
    assert isinstance(policy, StateMachine)
    assert policy == get_policy(f"zoo:{name}")


def test_ready_made_policies_are_listed_in_order():
    assert "tree-lstm" in zoo_names()
    assert list(zoo_names()) == sorted(zoo_names())


@pytest.mark.parametrize("policy", [Greedy(), MACHINE, FrontierPolicy()])
def test_a_policy_passes(policy):
    assert get_policy(policy) is policy


def test_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    MACHINE.save("machine.json")
    MACHINE.save("no-suffix")
    MACHINE.save("greedy")
    for spec in ("machine.json", Path("machine.json"), str(tmp_path / "machine.json")):
        assert get_policy(spec) == MACHINE
    assert get_policy("no-suffix") == MACHINE
    # A name means the heuristic; a path is a file.
    assert isinstance(get_policy("greedy"), Greedy)
    assert get_policy(Path("greedy")) == MACHINE


def test_the_name_of_a_ready_made_policy_is_no_file():
    with pytest.raises(PolicyError, match=r"zoo:tree-lstm names .* to get_policy of"):
        load_policy("zoo:tree-lstm")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gredy", "the path of a .json file but this is 'gredy'; did you mean 'greedy"),
        ("Depth", "but this is 'Depth'; did you mean 'depth'?"),
        ("", "but this is ''; known are 'agenda', 'agenda-remaining', 'depth'"),
        ("zoo:tree-lsmt", "but this is 'zoo:tree-lsmt'; did you mean 'tree-lstm'"),
        ("zoo:tree-lstm.json", "'zoo:tree-lstm.json'; did you mean 'tree-lstm'"),
        ("zoo:", "ready-made policy is zoo: and the name of its workload but this is"),
        ("missing.json", "there is no policy file missing.json"),
        (Path("missing"), "there is no policy file missing"),
        (None, "a policy is a name, a path, or an object .* but this is None; pass"),
        (3, "but this is 3; pass 'greedy'"),
        (Greedy, "but this is <class .*Greedy'>; pass .* an instance of a policy"),
    ],
)
def test_what_is_no_policy(spec, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PolicyError, match=message):
        get_policy(spec)


def test_the_heuristics_names_are_those_by_which_they_are_found():
    for name in ("depth", "agenda", "greedy"):
        assert get_policy(name).name == name
    assert re.fullmatch("fsm-max", MACHINE.name)
