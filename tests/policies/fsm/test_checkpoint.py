import itertools
import json
import os
import signal
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from random_graphs import build

from edbatch.envs import sample_lattice_structure, sample_tree_structure
from edbatch.errors import PolicyError
from edbatch.graph import TypeKey
from edbatch.policies import ENCODINGS, train_policy
from edbatch.policies.fsm import episode, training_run
from edbatch.policies.fsm.checkpoint import digest, load_checkpoint, save_checkpoint
from edbatch.policies.fsm.q_learning import new_table
from edbatch.schedule.examples import chain


def lattices(seed, count):
    rng = np.random.default_rng(seed)
    return [sample_lattice_structure(rng, instances=4) for _ in range(count)]


TRAIN, HELD_OUT = lattices(0, 3), lattices(1, 2)
NUM_TYPES = TRAIN[0].num_types


def train(path=None, **others):
    settings = {"encoding": "fall", "trials": 24, "generations": 3, "seed": 4}
    return train_policy(TRAIN, HELD_OUT, checkpoint=path, **(settings | others))


def check_equal(policy, expected):
    """Compares everything except the elapsed time."""
    elapsed_s = expected.training.elapsed_s
    assert replace(policy.training, elapsed_s=elapsed_s) == expected.training
    assert policy.states == expected.states
    assert replace(policy, training=expected.training) == expected


def interrupt_at(number):
    """A progress function that interrupts the judgement `number`, counting from 0."""
    count = itertools.count()

    def progress(*_):
        if next(count) == number:
            raise KeyboardInterrupt

    return progress


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_resumed_at_any_judgement(encoding, tmp_path):
    path = tmp_path / "checkpoint.npz"
    expected = train(encoding=encoding)
    judgements = len(expected.training.curve)
    assert judgements > 5
    for number in range(judgements):
        part = train(path, encoding=encoding, progress=interrupt_at(number))
        assert part.training.stopped == "interrupted"
        assert part.training.curve == expected.training.curve[: number + 1]
        check_equal(train(path, encoding=encoding, resume=True), expected)
    assert os.listdir(tmp_path) == ["checkpoint.npz"]


@pytest.mark.parametrize("encoding", ["fall", "sort"])
def test_interrupted_again_and_again(encoding, tmp_path):
    path = tmp_path / "checkpoint.npz"
    expected = train(encoding=encoding)
    part = train(path, encoding=encoding, progress=interrupt_at(0))
    for _ in range(100):
        if part.training.stopped != "interrupted":
            break
        resumed = {"encoding": encoding, "resume": True}
        part = train(path, **resumed, progress=interrupt_at(0))
    check_equal(part, expected)


def interrupt_in(name, number, monkeypatch, in_the_midst=False):
    """Makes a training function press Ctrl-C, or raise in the middle of a step."""
    module = episode if name == "run_trial" else training_run
    function = getattr(module, name)
    count = itertools.count()

    def wrapped(*arguments):
        result = function(*arguments)
        if next(count) == number:
            if in_the_midst:
                raise KeyboardInterrupt
            signal.raise_signal(signal.SIGINT)
        return result

    monkeypatch.setattr(module, name, wrapped)


@pytest.mark.parametrize("in_the_midst", [False, True])
@pytest.mark.parametrize(
    ("name", "number"),
    [
        *(("next_generation", number) for number in range(3)),
        *(("run_trial", number) for number in (0, 2, 3, 5, 6, 11, 26)),
        *(("save_checkpoint", number) for number in (0, 1, 2, 5)),
    ],
)
def test_resumed_after_ctrl_c(name, number, in_the_midst, tmp_path, monkeypatch):
    path = tmp_path / "checkpoint.npz"
    expected = train()
    with monkeypatch.context() as patch:
        interrupt_in(name, number, patch, in_the_midst)
        part = train(path)
    assert part.training.stopped == "interrupted"
    if path.exists():
        check_equal(train(path, resume=True), expected)
    else:  # in the middle of the very first step
        assert in_the_midst and name == "run_trial" and number <= 2


def test_resumed_where_training_had_ended(tmp_path):
    path = tmp_path / "checkpoint.npz"
    for others in ({}, {"patience": 1}, {"encoding": "sort", "trials": 3}):
        expected = train(path, **others)
        check_equal(train(path, **others, resume=True), expected)


def test_resumed_where_the_bound_was_met(tmp_path):
    path = tmp_path / "checkpoint.npz"
    rng = np.random.default_rng(0)
    trees = [sample_tree_structure(rng) for _ in range(4)]
    for encoding in ENCODINGS:
        settings = {"encoding": encoding, "checkpoint": path}
        expected = train_policy(trees[:2], trees[2:], **settings)
        assert expected.training.stopped == "lower bound"
        resumed = train_policy(trees[:2], trees[2:], **settings, resume=True)
        check_equal(resumed, expected)


def test_time_adds_up(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint.npz"
    clock = SimpleNamespace(perf_counter=itertools.count().__next__)
    monkeypatch.setattr("edbatch.policies.fsm.training_run.time", clock)
    first = train(path, progress=interrupt_at(6)).training.elapsed_s
    second = train(path, progress=interrupt_at(0), resume=True).training.elapsed_s
    assert 0 < first < second


def test_numpy_numbers_are_settings_too(tmp_path):
    path = tmp_path / "checkpoint.npz"
    numbers = {"trials": np.int64(4), "epsilon": np.float32(0.5), "seed": np.int32(3)}
    expected = train(path, **numbers)
    plain = {"trials": 4, "epsilon": 0.5, "seed": 3}
    check_equal(train(path, **plain, resume=True), expected)


# ---- errors ----


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "checkpoint.npz"
    train(path, progress=interrupt_at(4))
    return path


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"trials": 25}, "but 'trials' is 25 now and was 24; give the same, or start"),
        ({"seed": 5}, "but 'seed' is 5 now and was 4"),
        ({"encoding": "sort"}, "but 'encoding' is 'sort' now and was 'fall'"),
        ({"n_step": 3}, "but 'n_step' is 3 now and was 4"),
        ({"alpha": 0.25}, "but 'alpha' is 0.25 now and was 0.5"),
        ({"learning_rate": 0.1}, "but 'learning_rate' is 0.1 now and was 0.05"),
        ({"epsilon": 0}, "but 'epsilon' is 0 now and was 0.3"),
        ({"generations": 2}, "but 'generations' is 2 now and was 3"),
        ({"patience": 3}, "but 'patience' is 3 now and was 15"),
    ],
)
def test_other_settings(others, message, path):
    before = path.read_bytes()
    with pytest.raises(PolicyError, match=f"resumes with the settings .* {message}"):
        train(path, **others, resume=True)
    assert path.read_bytes() == before


def test_other_minibatches(path):
    message = "those in 'graphs' have changed; sample or record the same ones, or start"
    with pytest.raises(PolicyError, match=message):
        train_policy(
            TRAIN[::-1],
            HELD_OUT,
            trials=24,
            generations=3,
            seed=4,
            checkpoint=path,
            resume=True,
        )
    with pytest.raises(PolicyError, match="those in 'held_out' have changed"):
        train_policy(
            TRAIN,
            HELD_OUT[:1],
            trials=24,
            generations=3,
            seed=4,
            checkpoint=path,
            resume=True,
        )


def test_there_is_no_checkpoint(tmp_path):
    for path in (tmp_path / "a.npz", tmp_path / "nowhere" / "a.npz"):
        message = (
            "there is no file .*a.npz; an interrupted .* start it without --resume"
        )
        with pytest.raises(PolicyError, match=message):
            train(path, resume=True)


def test_no_checkpoint_can_be_written(tmp_path):
    message = r"cannot be written \(No such file.*name a file in an existing, writable"
    with pytest.raises(PolicyError, match=message):
        train(tmp_path / "nowhere" / "a.npz")
    (tmp_path / "folder").mkdir()
    with pytest.raises(PolicyError, match=r"cannot be written \(Is a directory\)"):
        train(tmp_path / "folder")
    assert os.listdir(tmp_path) == ["folder"]


DAMAGED = "is not one, or damaged .*; start again without --resume"


@pytest.mark.parametrize(
    "content", [b"", b"PK", b"{}", b"\x93NUMPY", bytes(1000), b"PK\x05\x06" + bytes(18)]
)
def test_what_is_no_checkpoint(content, tmp_path):
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    with pytest.raises(PolicyError, match=DAMAGED):
        train(path, resume=True)
    with pytest.raises(PolicyError, match=DAMAGED):
        train(tmp_path, resume=True)


def test_other_arrays(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(3))
    with pytest.raises(PolicyError, match=DAMAGED):
        train(tmp_path / "a.npy", resume=True)
    np.savez(tmp_path / "b.npz", weights=np.zeros(3))
    with pytest.raises(PolicyError, match=DAMAGED):
        train(tmp_path / "b.npz", resume=True)


def changed(path, target, **entries):
    """Copies a checkpoint with JSON entries replaced, or removed where `...`."""
    with np.load(path) as archive:
        arrays = dict(archive)
    rest = json.loads(str(arrays.pop("rest"))) | entries
    rest = {name: value for name, value in rest.items() if value is not ...}
    np.savez(target, rest=np.array(json.dumps(rest)), **arrays)


@pytest.mark.parametrize(
    "entries",
    [
        {"settings": ...},
        {"settings": 3},
        {"best": ...},
        {"best": []},
        {"best": {}},
        {"best": {"weights": [[-1.0], 1.0, 8], "states": []}},
        {"curve": [1]},
        {"curve": None},
        {"tuning": 3},
        {"trial": ...},
        {"elapsed_s": ...},
    ],
)
def test_damaged_entries(entries, path, tmp_path):
    changed(path, tmp_path / "b.npz", **entries)
    with pytest.raises(PolicyError, match=DAMAGED):
        train(tmp_path / "b.npz", resume=True)


def spoil(arrays, name, how):
    """Returns the arrays with one spoiled, which compiled code would not notice."""
    array = arrays[name].copy()
    if how == "shape":
        array = array[None]
    elif how == "dtype":
        array = array.astype(np.float32)
    else:
        array.flat[0] = how
    return arrays | {name: array}


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *((name, "shape") for name in ("child", "number", "used", "value", "visits")),
        *((name, "dtype") for name in ("child", "number", "used", "value", "visits")),
        *((name, how) for name in ("stream", "tuned") for how in ("shape", "dtype")),
        *((name, how) for name in ("child", "number") for how in (10**6, -2)),
        *(("used", how) for how in (0, -1, 10**6)),
    ],
)
def test_damaged_arrays(name, how, path, tmp_path):
    with np.load(path) as archive:
        arrays = dict(archive)
    np.savez(tmp_path / "b.npz", **spoil(arrays, name, how))
    with pytest.raises(PolicyError, match=DAMAGED) as caught:
        train(tmp_path / "b.npz", resume=True)
    assert len(str(caught.value).replace(str(tmp_path), "")) <= 300


@pytest.mark.parametrize("num_types", [1, NUM_TYPES - 1, NUM_TYPES + 1])
def test_arrays_for_another_number_of_types(num_types, path, tmp_path):
    """The file is edited by hand: another model's would also differ in minibatches."""
    with np.load(path) as archive:
        arrays = dict(archive)
    empty = new_table(num_types)
    arrays |= dict(zip(("child", "number", "used"), empty.trie, strict=True))
    arrays |= {"value": empty.value, "visits": empty.visits}
    arrays |= {name: np.zeros(num_types + 1) for name in ("mean", "spread", "tuned")}
    np.savez(tmp_path / "b.npz", **arrays)
    message = rf"damaged \(its table is for {num_types} types and the model"
    with pytest.raises(PolicyError, match=message):
        train(tmp_path / "b.npz", resume=True)


@pytest.mark.parametrize("trial", [-1, 25])
def test_a_trial_that_is_not_of_this_training(trial, path, tmp_path):
    changed(path, tmp_path / "b.npz", trial=trial)
    with pytest.raises(PolicyError, match=r"damaged \('trial' is out of range"):
        train(tmp_path / "b.npz", resume=True)


@pytest.mark.parametrize("tuning", [[-1, 9.0], [0.5, 9.0], [2, "9"], [2, None]])
def test_tuning_out_of_range(tuning, path, tmp_path):
    changed(path, tmp_path / "b.npz", tuning=tuning)
    with pytest.raises(PolicyError, match=r"damaged \('tuning' is out of range"):
        train(tmp_path / "b.npz", resume=True)


@pytest.mark.parametrize("name", ["mean", "spread", "tuned"])
def test_tuning_to_no_number(name, path, tmp_path):
    with np.load(path) as archive:
        arrays = dict(archive)
    np.savez(tmp_path / "b.npz", **spoil(arrays, name, np.nan))
    with pytest.raises(PolicyError, match=r"damaged \('tuning' is out of range"):
        train(tmp_path / "b.npz", resume=True)


@pytest.mark.parametrize(
    "entries",
    [
        {"states": [[[0, NUM_TYPES], 0, 1, 0.0]]},
        {"states": [[[0], -1, 1, 0.0]]},
        {"states": [[["0"], 0, 1, 0.0]]},
        {"states": [[[0], 0, 1, None]]},
        {"states": [[[0], 0, 0.5, 0.0]]},
        {"weights": [[1.0], 1.0, 8]},
        {"weights": [[], 1.0, 8.0]},
        {"batches": "9"},
        {"unseen": None},
        {"trial": 0.5},
        {"meets_bounds": 1},
    ],
)
def test_a_best_result_that_cannot_be(entries, path, tmp_path):
    best = json.loads(str(np.load(path)["rest"]))["best"]
    changed(path, tmp_path / "b.npz", best=best | entries)
    with pytest.raises(PolicyError, match=r"damaged \('best' does not fit the types"):
        train(tmp_path / "b.npz", resume=True)


@pytest.mark.parametrize(
    "entries",
    [{"trial": "x" * 10**6}, {"curve": [[1, "x" * 10**6]]}, {"elapsed_s": None}],
    ids=["trial", "curve", "time"],
)
def test_entries_of_other_types(entries, path, tmp_path):
    changed(path, tmp_path / "b.npz", **entries)
    with pytest.raises(PolicyError, match=DAMAGED) as caught:
        train(tmp_path / "b.npz", resume=True)
    assert len(str(caught.value).replace(str(tmp_path), "")) <= 300


def test_truncated_and_flipped_bytes(path):
    content = path.read_bytes()
    settings = json.loads(str(np.load(path)["rest"]))["settings"]
    state = load_checkpoint(path, settings, NUM_TYPES)
    for length in range(0, len(content), len(content) // 50):
        path.write_bytes(content[:length])
        with pytest.raises(PolicyError, match=DAMAGED):
            load_checkpoint(path, settings, NUM_TYPES)
    for place in range(0, len(content), len(content) // 300):
        flipped = bytearray(content)
        flipped[place] ^= 0x55
        path.write_bytes(flipped)
        try:
            found = load_checkpoint(path, settings, NUM_TYPES)
        except PolicyError:
            continue
        # Some bytes of an archive have no effect, such as timestamps.
        assert (found.trial, found.curve) == (state.trial, state.curve)
        np.testing.assert_array_equal(found.table.value, state.table.value)


def test_what_is_saved_is_loaded(path, tmp_path):
    settings = json.loads(str(np.load(path)["rest"]))["settings"]
    state = load_checkpoint(path, settings, NUM_TYPES)
    save_checkpoint(tmp_path / "b.npz", state, settings)
    again = load_checkpoint(tmp_path / "b.npz", settings, NUM_TYPES)
    assert (again.best, again.curve) == (state.best, state.curve) or (
        vars(again.best) == vars(state.best)
    )
    for ours, theirs in zip(
        (
            *again.table.trie,
            *again.table[1:],
            again.stream,
            *vars(again.tuning).values(),
        ),
        (
            *state.table.trie,
            *state.table[1:],
            state.stream,
            *vars(state.tuning).values(),
        ),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)
        assert np.asarray(ours).dtype == np.asarray(theirs).dtype


# ---- digests ----


def test_digests_differ_where_minibatches_do():
    one = build([0, 0, 1], [[], [0], []], 2)
    others = [
        build([0, 0, 1], [[], [], [0]], 2),  # the same operands, read by another node
        build([0, 1, 1], [[], [0], []], 2),
        build([0, 0, 1], [[], [-1], []], 2),
        build([0, 0, 1], [[], [0], []], 3),
        replace(one, instance_nodes=np.array([2, 1], np.int32)),
        replace(one, type_keys=(TypeKey("t0", "", 0), TypeKey("t1", "", 0, 1))),
        # Types that differ although their texts are equal.
        replace(one, type_keys=(TypeKey("a@b", "", 0), TypeKey("c", "", 0))),
        replace(one, type_keys=(TypeKey("a", "b", 0), TypeKey("c", "", 0))),
    ]
    digests = [digest([each]) for each in (one, *others)]
    digests += [digest([]), digest([one, one]), digest([one, others[0]])]
    digests += [digest([others[0], one])]
    assert len({*digests}) == len(digests)
    assert digest([one]) == digest([build([0, 0, 1], [[], [0], []], 2)])
    assert digest([chain("ab")]) == digest([chain("ab")])


def test_two_trainings_may_save_at_the_same_time(path, tmp_path, monkeypatch):
    """One training saves while the other is about to put its file in place."""
    settings = json.loads(str(np.load(path)["rest"]))["settings"]
    state = load_checkpoint(path, settings, NUM_TYPES)
    own, replace_file = tmp_path / "own.npz", os.replace

    def late(source, target):
        monkeypatch.setattr(os, "replace", replace_file)
        save_checkpoint(own, state, settings)
        replace_file(source, target)

    monkeypatch.setattr(os, "replace", late)
    save_checkpoint(own, state, settings)
    assert load_checkpoint(own, settings, NUM_TYPES).trial == state.trial
    assert not [*tmp_path.glob("*.tmp*")]
