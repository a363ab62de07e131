"""Policy files of earlier versions."""

import json
from dataclasses import replace

import pytest
from sample_policy import POLICY, RECORD, TYPES, changed

from edbatch.errors import PolicyError
from edbatch.policies import (
    MachineState,
    StateMachine,
)
from edbatch.policies.files.policy_file import parse_policy, policy_text
from edbatch.policies.smooth_bound.weights import BoundWeights


def test_what_was_called_agenda_in_version_2_is_agenda_remaining():
    content = changed("version", value=2)
    del content["training"]["held_out_agenda_remaining"]
    policy = parse_policy(json.dumps(content))
    expected = replace(RECORD, held_out_agenda=None, held_out_agenda_remaining=17.5)
    assert policy == replace(POLICY, training=expected)
    assert parse_policy(policy_text(policy)) == policy
    content["training"]["held_out_agenda"] = "many"
    says = "'held_out_agenda_remaining' in 'training' is not of type number"
    with pytest.raises(PolicyError, match=says):
        parse_policy(json.dumps(content))


def test_the_batches_of_agenda_are_a_number_or_unknown():
    content = changed("training", "held_out_agenda", value="many")
    says = "'held_out_agenda' in 'training' is not of type number or null"
    with pytest.raises(PolicyError, match=says):
        parse_policy(json.dumps(content))


VERSION_1 = """\
{
"format": "edbatch-policy",
"version": 1,
"encoding": "sort",
"types": [
  {"cell": "leaf", "path": "", "arity": 0, "variant": 0}
],
"states": [
  {"frontier": ["leaf/0"], "action": "leaf/0", "visits": 12, "value": -2.25}
],
"training": null
}
"""


NEW_IN_2 = ("generations", "patience", "curve")


def test_a_file_of_version_1():
    expected = StateMachine(TYPES[:1], "sort", (MachineState((0,), 0, 12, -2.25),))
    assert parse_policy(VERSION_1) == expected
    assert parse_policy(policy_text(parse_policy(VERSION_1))) == expected


def test_a_training_record_of_version_1():
    content = changed("version", value=1)
    del content["soft_bound"]
    for name in (*NEW_IN_2, "held_out_agenda_remaining"):
        del content["training"][name]
    policy = parse_policy(json.dumps(content))
    # Version 1 tuned nothing, and its patience was the number of trials.
    assert policy.training == replace(
        RECORD,
        generations=0,
        patience=1000,
        curve=(),
        held_out_agenda=None,
        held_out_agenda_remaining=17.5,
    )
    assert policy.weights == BoundWeights()
    del content["training"]["max_trials"]
    with pytest.raises(PolicyError, match="'training' has no 'max_trials'"):
        parse_policy(json.dumps(content))
    content["training"] = [1]
    with pytest.raises(PolicyError, match="'training' is not an object"):
        parse_policy(json.dumps(content))


def test_version_1_had_no_soft_bound():
    content = changed("version", value=1)
    content["soft_bound"] = "a comment"
    assert parse_policy(json.dumps(content)).weights == BoundWeights()
