"""Models that read values cannot be sharded, but their recorded rollouts can."""

import pytest
from asking_models import make_params, sample_words, shift_reduce
from compared_answers import assert_same

import edbatch as eb
from edbatch.instance_results import split_instances


@pytest.fixture(autouse=True)
def coarse():
    with eb.use_tiers("coarse"):
        yield


def test_the_sentence_says_what_to_do_and_that_works():
    params, instances = make_params(), sample_words(5)
    batched = eb.batch(shift_reduce)
    sharded = batched.sharded()
    for run in (
        lambda: sharded(params, instances),
        lambda: sharded.plan(instances, params=params),
        lambda: sharded.warm_up(instances, params=params),
    ):
        with pytest.raises(eb.RecordingError, match="asks for a value") as found:
            run()
        assert "asking_models.py" in str(found.value)
        assert "batched.rollout(params, instances).recordings" in str(found.value)
    recordings = batched.rollout(params, instances).recordings
    outputs = sharded(params, recordings)
    split = split_instances(outputs, len(instances))
    for found, instance in zip(split, instances, strict=True):
        assert_same(found, shift_reduce(params, instance))
