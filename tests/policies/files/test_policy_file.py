import json
import math
import os
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from odd_json import ODD_VALUES, place_name, places
from sample_policy import POLICY, RECORD, TEXT, TYPES, changed

from edbatch.envs import sample_dag_structure
from edbatch.errors import PolicyError
from edbatch.graph import TypeKey
from edbatch.policies import (
    ENCODINGS,
    MachineState,
    StateMachine,
    load_policy,
    save_policy,
)
from edbatch.policies.files.policy_file import parse_policy, policy_text
from edbatch.policies.fsm.encoding import is_possible_encoding
from edbatch.policies.smooth_bound.weights import POWERS, BoundWeights
from edbatch.schedule import check_schedule


def test_the_text_of_a_policy():
    assert policy_text(POLICY).startswith(TEXT)
    assert policy_text(POLICY).endswith("}\n}\n")
    assert json.loads(policy_text(POLICY))["training"]["elapsed_s"] == 0.125


def test_the_text_of_an_untrained_policy():
    text = policy_text(StateMachine((), "max"))
    assert text.endswith(
        '"types": [],\n"soft_bound": {"power": 8, "path": 1.0, "types": {}},\n'
        '"states": [],\n"training": null\n}\n'
    )
    assert parse_policy(text) == StateMachine((), "max")


keys = st.builds(
    TypeKey, st.text(max_size=6), st.text(max_size=6), st.integers(0, 9), st.integers(0)
)
numbers = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def policies(draw):
    types = draw(st.lists(keys, max_size=5, unique=True))
    encoding = draw(st.sampled_from(ENCODINGS))
    states = {}
    if types:
        symbols = st.lists(st.sampled_from(range(len(types))), min_size=1, max_size=5)
        for frontier in draw(st.lists(symbols.map(tuple), max_size=8)):
            if is_possible_encoding(encoding, frontier):
                states[frontier] = MachineState(
                    frontier,
                    draw(st.sampled_from(frontier)),
                    draw(st.integers(0, 2**63 - 1)),
                    draw(numbers),
                )
    training = draw(
        st.none()
        | st.builds(
            replace,
            st.just(RECORD),
            workload=st.text(max_size=9),
            encoding=st.just(encoding),
        )
    )
    weight = st.floats(0, allow_nan=False, allow_infinity=False)
    weights = BoundWeights(
        draw(st.just([]) | st.lists(weight, min_size=len(types), max_size=len(types))),
        draw(weight),
        draw(st.sampled_from(POWERS)),
    )
    return StateMachine(
        tuple(types), encoding, tuple(states.values()), training, weights
    )


@given(policies())
def test_what_is_written_is_read(policy):
    text = policy_text(policy)
    assert parse_policy(text) == policy
    assert policy_text(parse_policy(text)) == text


def test_types_whose_texts_agree_are_told_apart():
    types = (TypeKey("a@b", "", 0), TypeKey("a", "b", 0))
    states = (MachineState((0,), 0), MachineState((1,), 1))
    policy = StateMachine(types, "base", states)
    assert '"frontier": ["a@b/0#1"]' in policy_text(policy)
    assert parse_policy(policy_text(policy)) == policy


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ([MachineState((0,), 1)], "state 0 has an action that is not on its frontier"),
        ([MachineState((), 0)], "state 0 has an action that is not on its frontier"),
        (
            [MachineState((0,), 0), MachineState((0,), 0, visits=3)],
            "state 1 repeats the frontier of another",
        ),
        ([MachineState((1, 0), 0)], "that the encoding 'base' cannot produce"),
        ([MachineState((0,), 0, value=math.nan)], "or 'value' no finite one; fix that"),
        ([MachineState((0,), 0, value=math.inf)], "or 'value' no finite one; fix that"),
        ([MachineState((0,), 0, visits=1.5)], "'visits' of state 0 is no whole number"),
        ([MachineState((0,), 0, visits=-5)], "'visits' of state 0 is negative"),
    ],
)
def test_a_machine_that_could_not_be_read_is_not_written(tmp_path, states, message):
    path = tmp_path / "policy.json"
    policy = StateMachine(TYPES, "base", tuple(states))
    with pytest.raises(PolicyError, match=message):
        policy.save(path)
    assert not path.exists()


def test_a_machine_with_a_type_twice_is_not_written(tmp_path):
    with pytest.raises(
        PolicyError, match="in this one type 2 repeats 'leaf/0'; fix that"
    ):
        StateMachine(TYPES + TYPES, "base").save(tmp_path / "policy.json")
    assert not [*tmp_path.iterdir()]


def test_numbers_of_numpy_are_written(tmp_path):
    state = MachineState((0,), 0, np.int64(3), np.float32(0.5))
    path = StateMachine(TYPES, "base", (state,)).save(tmp_path / "policy.json")
    assert load_policy(path).states == (MachineState((0,), 0, 3, 0.5),)


def test_a_file_says_that_a_training_was_by_cost():
    by_cost = replace(POLICY, training=replace(RECORD, by_cost=True))
    text = policy_text(by_cost)
    assert parse_policy(text) == by_cost
    # Earlier versions of edbatch would reject the entry; so they report the version.
    assert json.loads(text)["version"] == 4
    assert json.loads(policy_text(POLICY))["version"] == 3
    assert "by_cost" not in policy_text(POLICY)


def test_save_and_load(tmp_path):
    path = tmp_path / "policy.json"
    assert POLICY.save(path) == path
    assert load_policy(path) == load_policy(str(path)) == POLICY
    assert load_policy(path).training == RECORD
    shuffled = replace(POLICY, states=POLICY.states[::-1])
    other = shuffled.save(tmp_path / "other.json")
    assert other.read_bytes() == path.read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["other.json", "policy.json"]


def test_a_file_is_replaced_as_a_whole(tmp_path, monkeypatch):
    path = POLICY.save(tmp_path / "policy.json")
    before = path.read_bytes()
    mode = path.stat().st_mode

    def fail(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(PolicyError, match=r"cannot be written \(No space left"):
            StateMachine(TYPES, "max").save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["policy.json"]
    StateMachine(TYPES, "max").save(path)
    assert load_policy(path).encoding == "max"
    assert path.stat().st_mode == mode
    assert os.listdir(tmp_path) == ["policy.json"]


def test_a_reader_never_sees_a_part(tmp_path):
    path = POLICY.save(tmp_path / "policy.json")
    other = StateMachine(TYPES, "max")
    stop = threading.Event()

    def write():
        while not stop.is_set():
            save_policy(other, path)
            save_policy(POLICY, path)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(100):
            assert load_policy(path) in (POLICY, other)
    finally:
        stop.set()
        writer.join()


def test_the_target_of_a_link_is_replaced(tmp_path):
    target = POLICY.save(tmp_path / "policy.json")
    link = tmp_path / "link.json"
    link.symlink_to(target)
    StateMachine(TYPES, "max").save(link)
    assert link.is_symlink()
    assert load_policy(target).encoding == "max"


# ---- errors ----


def test_a_missing_file_names_the_nearest(tmp_path):
    POLICY.save(tmp_path / "tree-lstm.json")
    (tmp_path / "tree-lstm.txt").touch()
    with pytest.raises(
        PolicyError,
        match=r"no policy file .*tree_lstm.json: did you mean 'tree-lstm.json'\?",
    ):
        load_policy(tmp_path / "tree_lstm.json")


def test_a_missing_file_in_a_folder_without_policies(tmp_path):
    with pytest.raises(PolicyError, match=r"its folder has no \.json file"):
        load_policy(tmp_path / "a.json")
    with pytest.raises(PolicyError, match=r"there is no folder .*nowhere either"):
        load_policy(tmp_path / "nowhere" / "a.json")


def test_a_missing_file_in_a_folder_that_cannot_be_listed(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)  # root may list any folder
    with pytest.raises(PolicyError, match=r"a\.json: its folder cannot be listed"):
        load_policy(tmp_path / "a.json")


@pytest.mark.parametrize("length", [200, 250, 255])
@pytest.mark.parametrize("suffix", [".json", "", "." + "x" * 100])
def test_names_may_be_as_long_as_the_system_takes(length, suffix, tmp_path):
    path = tmp_path / ("a" * (length - len(suffix)) + suffix)
    assert load_policy(POLICY.save(path)) == POLICY
    assert [*tmp_path.iterdir()] == [path]
    with pytest.raises(PolicyError, match=r"cannot be written \(File name too long\)"):
        POLICY.save(path.with_name("a" * 56 + path.name))


def test_the_root_is_no_file():
    with pytest.raises(PolicyError, match=r"/ cannot be written \(Is a directory\)"):
        POLICY.save("/")


def test_an_empty_text_is_no_file():
    with pytest.raises(PolicyError, match="is the path of a file but this is empty"):
        load_policy("")


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(PolicyError, match=r"cannot be read \(Is a directory\); name a"):
        load_policy(tmp_path)
    with pytest.raises(PolicyError, match=r"cannot be written \(Is a directory\); nam"):
        POLICY.save(tmp_path)
    with pytest.raises(
        PolicyError, match=r"an existing, writable folder but .*nowhere"
    ):
        POLICY.save(tmp_path / "nowhere" / "a.json")
    assert os.listdir(tmp_path) == []


def test_bytes_that_are_no_text(tmp_path):
    (tmp_path / "a.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PolicyError, match=r"written by `policy.save`, but .* not text"):
        load_policy(tmp_path / "a.json")


def test_every_truncation_is_an_error_that_says_so(tmp_path):
    text = policy_text(POLICY)
    path = tmp_path / "a.json"
    for length in range(0, len(text) - 2, 7):
        path.write_text(text[:length], encoding="utf-8")
        # A text that ends in a brace looks like one that is wrong inside.
        closed = text[:length].rstrip().endswith("}")
        says = "is not" if closed else "is (empty|truncated); sa"
        with pytest.raises(PolicyError, match=f"a.json (ends too early and )?{says}"):
            load_policy(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "this text is empty; save or train the policy again"),
        ("states: []", "this text is not .Expecting value.*; name another file, or"),
        ("[1, 2", "this text is not .Expecting ',' delimiter"),
        ("{,}", "this text is not .Expecting property name"),
        (
            "[" * 100_000,
            r"this text is not \(it is nested too deeply\); name another file",
        ),
        ('{"value": NaN}', "this text is not .NaN is not a JSON number"),
        ("[]", 'says "format": "edbatch-policy" but this text is other JSON; name a'),
        ('{"version": 1}', "but this text is other JSON"),
        ('{"format": "other"}', "but this text is other JSON"),
    ],
)
def test_what_is_no_policy_file(text, message):
    with pytest.raises(PolicyError, match=message):
        parse_policy(text)


STATE = {"frontier": ["leaf/0"], "action": "leaf/0", "visits": 1, "value": 0.0}


@pytest.mark.parametrize("place", [*places(changed())][1:], ids=place_name)
def test_an_odd_file_is_refused_or_works(place):
    structure = sample_dag_structure(np.random.default_rng(0), types=2)
    structure = replace(structure, type_keys=TYPES)
    for value in ODD_VALUES:
        text = json.dumps(changed(*place, value=value))
        try:
            policy = parse_policy(text, "p")
            schedule = policy.schedule(structure)
        except PolicyError as error:
            assert len(str(error)) <= 300
            continue
        check_schedule(schedule, structure)
        assert parse_policy(policy_text(policy)) == policy


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (changed("version", value=5), "up to version 4 but p has version 5; install a"),
        (
            changed("training", "by_cost", value=1),
            "'by_cost' in 'training' is not of type boolean or null",
        ),
        (changed("version", value="1"), "in p 'version' is '1'; save or train"),
        (changed("version", value=True), "in p 'version' is True; save"),
        (changed("version", value=0), "in p 'version' is 0; save"),
        (changed("version", delete=True), "in p 'version' is None"),
        (changed("encoding", value="srot"), "'srot' is unknown, did you mean 'sort'"),
        (changed("encoding", delete=True), "the file has no 'encoding'; save or train"),
        (changed("types", delete=True), "the file has no 'types'"),
        (changed("types", value={}), "'types' of the file is not a JSON array"),
        (changed("types", 0, value="leaf/0"), "type 0 is not an object"),
        (changed("types", 1, "arity", delete=True), "type 1 has no 'arity'"),
        (changed("types", 1, "arity", value=4.0), "'arity' of type 1 is not a JSON in"),
        (changed("types", 1, "arity", value=True), "'arity' of type 1 is not a JSON"),
        (changed("types", 1, "cell", value=0), "'cell' of type 1 is not a JSON string"),
        (changed("types", 1, value=changed()["types"][0]), "type 1 repeats 'leaf/0'"),
        (changed("states", delete=True), "the file has no 'states'"),
        (changed("states", 0, value=None), "state 0 is not an object"),
        (changed("states", 0, "action", delete=True), "state 0 has no 'action'"),
        (
            changed("states", 1, "action", value="compos@enc.0/4"),
            "state 1 refers to an unknown type 'compos@enc.0/4', did you mean 'compose",
        ),
        (
            changed("states", 0, "frontier", value=["leaf/1"]),
            "state 0 refers to an unknown type 'leaf/1', did you mean 'leaf/0'",
        ),
        (changed("states", 0, "frontier", value=[0]), "state 0 refers to an unknown"),
        (changed("states", 0, "frontier", value=[["a"]]), "state 0 refers to an unkn"),
        (changed("states", 0, "frontier", value="leaf/0"), "'frontier' of state 0 is"),
        (changed("states", 0, "frontier", value=[]), "action that is not on its front"),
        (
            changed("states", 0, "action", value="compose@enc.0/4"),
            "state 0 has an action that is not on its frontier",
        ),
        (
            changed("states", 0, "frontier", value=["leaf/0", "leaf/0"]),
            "state 0 has a frontier that the encoding 'sort' cannot produce",
        ),
        (changed("states", 1, value=STATE), "state 1 repeats the frontier of another"),
        (
            changed("states", 0, "visits", value=1.5),
            "'visits' of state 0 is not a JSON",
        ),
        (changed("states", 0, "visits", value=10**30), "'visits' of state 0 is .* 64"),
        (changed("training", "trials", value=-3), "'trials' in 'training' is negative"),
        (changed("training", "curve", value=[[1, -2.0]]), "'curve' .* has a negative"),
        (changed("states", 0, "value", value="-1"), "'value' of state 0 is not a JSON"),
        (changed("training", value=[]), "'training' is not an object"),
        (changed("training", "seed", delete=True), "'training' has no 'seed'"),
        (changed("training", "sed", value=1), "'training' has an unknown 'sed'"),
        (changed("training", "seed", value="7"), "'seed' in 'training' is not of type"),
        (changed("training", "alpha", value=True), "'alpha' in 'training' is not of t"),
        (
            changed("training", "alpha", value=10**400),
            "'alpha' in 'training' is not of",
        ),
        (changed("training", "curve", value={}), "'curve' in 'training' is not an arr"),
        (changed("training", "curve", value=[[1]]), "'curve' in 'training' is not an"),
        (changed("training", "curve", 0, value=[1.5, 2.0]), "not an array of pairs of"),
        (
            changed("training", "curve", 0, value=[1, "2"]),
            "not an array of pairs of nu",
        ),
        (changed("training", "curve", 0, value=[1, 10**400]), "not an array of pairs"),
        (changed("training", "curve", delete=True), "'training' has no 'curve'"),
        (
            changed("soft_bound", delete=True),
            "'soft_bound' is not an object of 'power'",
        ),
        (
            changed("soft_bound", value=None),
            "'soft_bound' is not an object of 'power',",
        ),
        (
            changed("soft_bound", value=[]),
            "'soft_bound' is not an object of 'power', 'p",
        ),
        (
            changed("soft_bound", "path", delete=True),
            "'soft_bound' is not an object of",
        ),
        (
            changed("soft_bound", "pth", value=1.0),
            "'soft_bound' is not an object of 'po",
        ),
        (
            changed("soft_bound", "power", value=3),
            r"'power' of 'soft_bound' is not one ",
        ),
        (
            changed("soft_bound", "power", value=8.0),
            "'power' of 'soft_bound' is not one",
        ),
        (
            changed("soft_bound", "power", value=True),
            "'power' of 'soft_bound' is not on",
        ),
        (
            changed("soft_bound", "path", value="1"),
            "a weight in 'soft_bound' is not a n",
        ),
        (
            changed("soft_bound", "path", value=-0.5),
            "a weight in 'soft_bound' is not a ",
        ),
        (
            changed("soft_bound", "path", value=True),
            "a weight in 'soft_bound' is not a ",
        ),
        (
            changed("soft_bound", "path", value=10**400),
            "a weight in 'soft_bound' is not",
        ),
        (
            changed("soft_bound", "types", value=[]),
            "'types' of 'soft_bound' are not the",
        ),
        (
            changed("soft_bound", "types", "leaf/0", value=None),
            "a weight in 'soft_bound' is not a number, 0 or more; save or train",
        ),
        (
            changed("soft_bound", "types", "leaf/0", delete=True),
            "in p 'types' of 'soft_bound' are not the types of the file; save or train",
        ),
        (
            changed(
                "soft_bound", "types", value={"compose@enc.0/4": 1.0, "leaf/0": 2.0}
            ),
            "'types' of 'soft_bound' are not the types of the file",
        ),
        (
            changed("states", 0, "value", value=10**400),
            "'value' of state 0 is not a JSO",
        ),
        (changed("training", "versions", value=[]), "'versions' in 'training' is not"),
        (changed("training", "versions", value={"a": 1}), "'versions' in 'training'"),
    ],
)
def test_a_damaged_file(content, message):
    with pytest.raises(PolicyError, match=message):
        parse_policy(json.dumps(content), "p")


def test_entries_that_later_versions_may_add_are_ignored():
    assert parse_policy(json.dumps(changed("comment", value="by hand"))) == POLICY


@pytest.mark.parametrize(
    ("place", "known"),
    [
        (("trainings",), "training"),
        (("sates",), "states"),
        (("types", 0, "variants"), "variant"),
        (("states", 0, "visit"), "visits"),
    ],
)
def test_misspelt_entries_are_named(place, known):
    text = json.dumps(changed(*place, value=3))
    message = f"unknown entry '{place[-1]}', did you mean '{known}'"
    with pytest.raises(PolicyError, match=message):
        parse_policy(text)


def test_entries_that_are_there_twice_are_named():
    text = policy_text(POLICY).replace('"seed"', '"encoding": "max", "seed"')
    with pytest.raises(PolicyError, match="one object has 'encoding' twice"):
        parse_policy(text)


def test_a_record_of_another_machine_is_refused(tmp_path):
    content = changed("encoding", value="max" if POLICY.encoding != "max" else "base")
    content["states"] = []
    with pytest.raises(PolicyError, match="by 'training' it is 'sort'"):
        parse_policy(json.dumps(content))
    other = replace(POLICY, training=replace(RECORD, encoding="base"))
    with pytest.raises(PolicyError, match="by 'training' it is 'base'"):
        other.save(tmp_path / "policy.json")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("edits", [{"stopped": "greedy"}, {"worse_than_greedy": True}])
def test_a_record_that_follows_greedy_has_no_states(edits):
    record = replace(RECORD, encoding="fall", **edits)
    follows = StateMachine(POLICY.types, "sort", (), record)
    assert parse_policy(policy_text(follows)) == follows
    with pytest.raises(PolicyError, match="says that it only follows greedy"):
        policy_text(replace(POLICY, training=record))
    with pytest.raises(PolicyError, match="by 'training' it is 'sort'"):
        policy_text(replace(follows, encoding="fall"))


def test_what_was_interrupted_before_a_table_was_evaluated_follows_greedy():
    record = replace(RECORD, encoding="fall", stopped="interrupted", curve=())
    follows = StateMachine(POLICY.types, "sort", (), record)
    assert parse_policy(policy_text(follows)) == follows


def test_how_training_ended_is_one_of_few():
    with pytest.raises(PolicyError, match="'stopped' in 'training' is 'bored'"):
        parse_policy(json.dumps(changed("training", "stopped", value="bored")))


def test_seeds_may_be_negative():
    content = changed("training", "seed", value=-1)
    assert parse_policy(json.dumps(content)).training.seed == -1


def test_whole_numbers_are_values_too():
    content = changed("states", 0, "value", value=-2)
    assert parse_policy(json.dumps(content)).states[0].value == -2.0


def test_a_number_too_large_for_a_float_is_none():
    text = policy_text(POLICY)
    for old in ('"value": -2.25', '"path": 1.25', '"alpha": 0.5'):
        assert old in text
        changed_text = text.replace(old, f"{old.split(':')[0]}: 1e999")
        with pytest.raises(PolicyError, match="keeps to the format"):
            parse_policy(changed_text)


# ---- version 2 ----


# ---- version 1 ----


def test_equal_machines_give_equal_bytes():
    one = replace(POLICY, weights=BoundWeights((1, 2), path=-0.0, power=4))
    same = replace(POLICY, weights=BoundWeights((1.0, 2.0), path=0, power=4))
    assert one == same
    assert policy_text(one) == policy_text(same)
