"""A loader's position is saved as JSON, and restored only in the run it belongs to."""

import json
from dataclasses import asdict, replace

import jax.numpy as jnp
import numpy as np
import pytest
from trees import encode, make_params, sample_trees

import edbatch as eb
from edbatch.loader.state import LoaderState, digest

STATE = LoaderState(
    epoch=2,
    step=1,
    seed=0,
    batch_size=4,
    shuffle=True,
    group_by_size=False,
    drop_last=False,
    instances=10,
    data="0123456789abcdef",
)


def test_a_state_survives_json():
    kept = json.loads(json.dumps(asdict(replace(STATE, epoch=3, step=2))))
    assert STATE.resumed(kept, steps=3) == replace(STATE, epoch=3, step=2)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("seed", 5, "but its seed is 5 and this loader's is 0; usually a checkpoint"),
        ("batch_size", 8, "but its batch_size is 8 and this loader's is 4"),
        ("shuffle", False, "but its shuffle is False and this loader's is True"),
        ("group_by_size", True, "its group_by_size is True and this loader's is False"),
        ("drop_last", True, "but its drop_last is True and this loader's is False"),
        ("instances", 9, "but its instances is 9 and this loader's is 10"),
        ("data", "x", r"its instances are not this loader's \(their digests differ\)"),
        (
            "data",
            "read anew",
            "a loader that reads instances each time, and this one keeps",
        ),
        ("step", 3, "its step below the 3 minibatches of an epoch, but they are 2 and"),
        ("step", -1, "its step below the 3 minibatches"),
        ("epoch", -1, "a state's epoch is 0 or more"),
        ("epoch", 1.5, "a state's epoch is 0 or more"),
        ("step", "9" * 10**6, "a state's epoch is 0 or more"),
        ("seed", np.arange(3), r"its seed is array\(\[0, 1, 2\]\) and this loader's"),
        ("seed", [[0], 0], "its seed is "),
        ("data", "x" * 10**6, "its instances are not this loader's"),
        ("shuffle", "x" * 10**6, "its shuffle is 'xxx"),
    ],
)
def test_the_state_of_another_run_is_refused(name, value, message):
    with pytest.raises(eb.LoaderError, match=message) as caught:
        STATE.resumed(asdict(STATE) | {name: value}, steps=3)
    assert len(str(caught.value)) <= 300


def test_a_state_of_numpy_numbers():
    kept = {name: np.array(value) for name, value in asdict(STATE).items()}
    assert STATE.resumed(kept, steps=3) == STATE
    kept |= {name: np.int64(kept[name]) for name in ("epoch", "step")}
    assert STATE.resumed(kept, steps=3) == STATE
    kept |= {name: jnp.asarray(kept[name]) for name in ("epoch", "step")}
    assert STATE.resumed(kept, steps=3) == STATE


@pytest.mark.parametrize(
    "state",
    [
        *(None, 3, {}, {"epoch": 1, "step": 0}, [1, 2], {1: 2, "a": 3}),
        *("x" * 10**6, dict.fromkeys(range(10**5))),
    ],
    ids=lambda state: type(state).__name__,
)
def test_something_else_is_refused(state):
    with pytest.raises(
        eb.LoaderError, match="a loader's state has the entries epoch,"
    ) as caught:
        STATE.resumed(state, steps=3)
    assert len(str(caught.value)) < 450


def test_the_digest_is_of_the_data():
    trees = [(1, 2), 3, ((1, 2), 3)]
    batched = eb.batch(encode, params=make_params())
    own = digest(batched.record_all(trees))
    assert own == digest(batched.record_all(trees))
    assert own != digest(batched.record_all(trees[::-1]))  # another order
    assert own != digest(batched.record_all([(1, 2), 4, ((1, 2), 3)]))  # another word
    assert own != digest(batched.record_all([(1, 2), 3, (1, (2, 3))]))  # another shape
    assert own != digest(batched.record_all(trees[:2]))


def test_the_digest_does_not_depend_on_what_was_recorded_before():
    trees = sample_trees(0, 5)
    one, other = (eb.batch(encode, params=make_params()) for _ in range(2))
    one.record(3)
    other.record(((1, 2), 3))
    assert digest(one.record_all(trees)) == digest(other.record_all(trees))


def test_the_digest_tells_cells_and_results_apart():
    def other_root(params, tree):
        return encode(params, tree)[::-1]

    def other_cell(params, tree):
        return renamed(params, encode(params, tree)[0])

    def another_cell(params, tree):
        return renamed_again(params, encode(params, tree)[0])

    @eb.cell
    def renamed(params, state):
        return state

    @eb.cell
    def renamed_again(params, state):
        return state

    trees = sample_trees(0, 5)
    models = (encode, other_root, other_cell, another_cell)
    found = {
        digest(eb.batch(model, params=make_params()).record_all(trees))
        for model in models
    }
    assert len(found) == len(models)


def test_checkpoints_may_give_numbers_of_numpy():
    saved = asdict(replace(STATE, epoch=3, step=2))
    saved |= {name: np.int64(saved[name]) for name in ("epoch", "step", "seed")}
    again = STATE.resumed(saved, steps=3)
    assert again == replace(STATE, epoch=3, step=2)
    json.dumps(asdict(again))


@eb.cell
def double(x):
    return 2 * x


@pytest.mark.parametrize("last", [0, 1])
def test_the_digest_tells_which_node_reads_which_input(last):
    """Both recordings read the same arrays, each of which is kept once."""
    arrays = np.ones(3, np.float32), np.full(3, 2, np.float32)
    batched = eb.batch(
        lambda params, which: [double(arrays[k]) for k in which], params=()
    )
    own, other = (batched.record((0, 1, k)) for k in (last, 1 - last))
    assert digest([own]) == digest([batched.record((0, 1, last))]) != digest([other])
