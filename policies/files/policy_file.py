"""Policy files: a state machine as JSON that people can read and compare.

The file holds one type, one state and one entry of the training record per line,
sorted, so that two policies can be compared with ``diff``. Types are named by cell,
parameters and arity, never by shapes: a policy serves every hidden size. Equal
machines give the same bytes.
"""

from os import PathLike
from pathlib import Path
from typing import Any

from edbatch.errors import nearest, shown
from edbatch.policies.files.json_file import (
    POLICIES,
    check_file_names,
    read_entry,
    read_types,
)
from edbatch.policies.fsm.encoding import ENCODINGS
from edbatch.policies.fsm.machine_state import MachineState, type_labels
from edbatch.policies.fsm.state_machine import (
    StateMachine,
    check_record,
    check_states,
    file_version,
)
from edbatch.policies.fsm.training_record import TrainingRecord
from edbatch.policies.smooth_bound.weights import EQUAL_WEIGHTS, BoundWeights


def save_policy(policy: StateMachine, path: str | PathLike[str]) -> Path:
    """Writes a policy; a reader sees the old file or the new one, never a part.

    Args:
        policy: The policy.
        path: The file; replaced if it exists.

    Returns:
        The path.

    Raises:
        PolicyError: The file cannot be written, or could not be read again; see
            `StateMachine.save`.

    Example:
        >>> import tempfile
        >>> from edbatch.policies import load_policy, train_policy
        >>> from edbatch.schedule.examples import tree
        >>> graph = tree("((ab)cb)c")
        >>> policy = train_policy([graph], [graph], trials=10)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = save_policy(policy, f"{folder}/p.json")
        ...     load_policy(path).types == policy.types
        True
    """
    return policy.save(path)


def load_policy(path: str | PathLike[str]) -> StateMachine:
    """Reads a policy file.

    Args:
        path: The file.

    Returns:
        The policy.

    Raises:
        PolicyError: The file does not exist, is damaged, is no policy file, or was
            written by a later version.

    Example:
        >>> from edbatch.policies import StateMachine, load_policy
        >>> from edbatch.schedule.examples import chain
        >>> path = StateMachine(chain("ab").type_keys, "sort").save("copy.json")
        >>> load_policy(path).encoding
        'sort'
        >>> path.unlink()
    """
    path = POLICIES.path(path)
    return parse_policy(POLICIES.read(path), str(path))


def policy_text(policy: StateMachine) -> str:
    """Returns the content of a policy's file, JSON that ends in a new line."""
    return POLICIES.text(policy.to_json(), file_version(policy))


def parse_policy(text: str, source: str = "this text") -> StateMachine:
    """Reads the content of a policy file.

    Raises:
        PolicyError: As for `load_policy`.
    """
    return POLICIES.parse(text, source, _build)


def _upgraded(content: dict[str, Any], version: int) -> dict[str, Any]:
    """Adds what earlier versions did not have to what was read from such a file."""
    training = content.get("training")
    if version == 1:
        content = content | {"soft_bound": EQUAL_WEIGHTS.to_json([])}
        if isinstance(training, dict):
            # There was no tuning, and patience for all trials.
            patience = training.get("max_trials", 0)
            training = {"generations": 0, "patience": patience, "curve": []} | training
    if version <= 2 and isinstance(training, dict) and "held_out_agenda" in training:
        # What was called agenda is agenda-remaining.
        remaining = {"held_out_agenda_remaining": training["held_out_agenda"]}
        training = training | remaining | {"held_out_agenda": None}
    return content | {"training": training}


def _build(content: dict[str, Any], version: int) -> StateMachine:
    """Builds the machine; raises `ValueError` with a clause that says what is wrong."""
    names = ("encoding", "types", "soft_bound", "states", "training")
    check_file_names(content, *names)
    content = _upgraded(content, version)
    encoding = read_entry(content, "the file", "encoding", str)
    if encoding not in ENCODINGS:
        hint = nearest(encoding, ENCODINGS)
        raise ValueError(f"the encoding {shown(encoding)} is unknown, {hint}")
    types = read_types(read_entry(content, "the file", "types", list))
    position = {label: k for k, label in enumerate(type_labels(types))}
    states = tuple(
        MachineState.from_json(each, f"state {k}", position)
        for k, each in enumerate(read_entry(content, "the file", "states", list))
    )
    check_states(encoding, states)
    training = content.get("training")
    record = None if training is None else TrainingRecord.from_json(training)
    check_record(encoding, states, record)
    return StateMachine(
        types=types,
        encoding=encoding,
        states=states,
        weights=BoundWeights.from_json(content.get("soft_bound"), [*position]),
        training=record,
    )
