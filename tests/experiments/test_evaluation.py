"""Shared evaluation of the training scripts: data parts, minibatches, decoding."""

import jax
import jax.numpy as jnp
import numpy as np
from trees import encode, make_params, sample_trees

import edbatch as eb

TREES = sample_trees(0, 9)


def test_a_tenth_is_set_apart(experiment):
    training, held_out = experiment.set_apart(40, 0)
    assert len(held_out) == 4 and sorted(training + held_out) == list(range(40))
    assert experiment.set_apart(40, 1)[1] != held_out
    assert sorted(map(len, experiment.set_apart(2, 0))) == [1, 1]


def test_a_decoder_gives_the_lists_of_each_instance(experiment):
    @eb.cell
    def halve(params, x):
        return x // 2

    def model(params, number):
        found = [number]
        while found[-1] > 0:
            found.append(int(eb.value(halve(params, found[-1]))))
        return {"parities": [0] * (number % 2 + 1), "halves": found}

    decode = experiment.make_decoder(eb.batch(model), ("halves", "parities"), 2)
    numbers = [5, 0, 12]  # a minibatch of two, and one of one
    found = [
        (halves.tolist(), parities.tolist())
        for halves, parities in decode(jnp.float32(0), iter(numbers))
    ]
    assert found == [
        ([5, 2, 1, 0], [0, 0]),
        ([0], [0]),
        ([12, 6, 3, 1, 0], [0]),
    ]


def test_the_mean_loss_is_one_of_labels_not_of_instances(experiment):
    def model(params, labels):
        return [experiment.judge_label(params, label) for label in labels]

    logits = jnp.float32([0, 1, 2])
    batched = eb.batch(model, params=logits)
    labels = [[0, 1, 2], [2]]
    found = experiment.loss_of_labels(batched)(logits, batched.plan(labels), None)
    scores = np.arange(3)
    own = np.log(np.exp(scores).sum()) - scores
    np.testing.assert_allclose(found, (own.sum() + own[2]) / 4, rtol=1e-6)


def test_the_loss_of_a_label(experiment):
    logits = jnp.array([1.0, 3.0, -2.0])
    found = experiment.judge_label(logits, jnp.int32(1))
    assert float(found["right"]) == 1
    expected = -np.log(np.exp(3) / np.exp(logits).sum())
    np.testing.assert_allclose(found["loss"], expected, rtol=1e-6)
    assert float(experiment.judge_label(logits, jnp.int32(0))["right"]) == 0


def test_padding_does_not_count_in_a_mean(experiment):
    judged = eb.Ragged(
        {"loss": jnp.array([1.0, 2.0, 6.0, jnp.inf])},
        jnp.array([0, 0, 1, 2]),
        jnp.array([2, 1]),
    )
    assert float(experiment.mean_loss(judged)) == 3


def test_a_data_set_is_run_in_its_order(experiment):
    batched = eb.batch(encode, params=make_params(), sizes=eb.Sizes(widths=(4, 16)))
    run = experiment.run_all(batched, TREES, 4)
    for _ in range(2):
        found = run(make_params())
        assert [index.tolist() for index, _ in found] == [
            [0, 1, 2, 3],
            [4, 5, 6, 7],
            [8],
        ]
    expected = [encode(make_params(), each)[0] for each in TREES]
    rows = np.concatenate([hidden for _, (hidden, _) in found])
    np.testing.assert_allclose(rows, jnp.stack(expected), atol=1e-5)
    assert isinstance(jax.tree.leaves(found)[0], np.ndarray)
