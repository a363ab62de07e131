"""A small policy, its text, and its file with one change."""

import json

from edbatch.graph import TypeKey
from edbatch.policies import (
    MachineState,
    StateMachine,
    TrainingRecord,
)
from edbatch.policies.files.policy_file import policy_text
from edbatch.policies.smooth_bound.weights import BoundWeights

RECORD = TrainingRecord(
    workload="trees, “all” of them",
    encoding="sort",
    seed=7,
    n_step=4,
    alpha=0.5,
    learning_rate=0.05,
    epsilon=0.3,
    generations=12,
    patience=15,
    trials=8,
    max_trials=1000,
    best_trial=4,
    minibatches=16,
    batch_size=32.0,
    held_out=4,
    held_out_batches=13.25,
    held_out_lower_bound=13.0,
    held_out_depth=30.0,
    held_out_agenda=17.5,
    held_out_agenda_remaining=16.5,
    held_out_greedy=14.0,
    held_out_unseen=0,
    stopped="trials",
    worse_than_greedy=False,
    elapsed_s=0.125,
    curve=((1, 14.5), (4, 13.25), (8, 13.25)),
    versions=(("edbatch", "0.1.0"), ("numpy", "2.4.6")),
)


TYPES = (TypeKey("leaf", "", 0), TypeKey("compose", "enc.0", 4))


POLICY = StateMachine(
    TYPES,
    "sort",
    (MachineState((1, 0), 1, 3, -1.5), MachineState((0,), 0, 12, -2.25)),
    RECORD,
    BoundWeights((0.5, 2.0), path=1.25, power=4),
)


TEXT = """\
{
"format": "edbatch-policy",
"version": 3,
"encoding": "sort",
"types": [
  {"cell": "leaf", "path": "", "arity": 0, "variant": 0},
  {"cell": "compose", "path": "enc.0", "arity": 4, "variant": 0}
],
"soft_bound": {"power": 4, "path": 1.25, "types": {"leaf/0": 0.5, "compose@enc.0/4": \
2.0}},
"states": [
  {"frontier": ["leaf/0"], "action": "leaf/0", "visits": 12, "value": -2.25},
  {"frontier": ["compose@enc.0/4", "leaf/0"], "action": "compose@enc.0/4", \
"visits": 3, "value": -1.5}
],
"training": {
  "workload": "trees, “all” of them",
  "encoding": "sort",
"""


def changed(*path, value=None, delete=False):
    """The file's JSON with one entry replaced or removed."""
    content = json.loads(policy_text(POLICY))
    if not path:
        return content
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    if delete:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return content
