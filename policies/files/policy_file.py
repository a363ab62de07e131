"""Policy files: a state machine as readable JSON.

The file holds one type, one state and one entry of the training record per line,
sorted, so that two policies can be compared with ``diff``. Types are named by cell,
parameters and arity, never by shapes, so a policy works for every hidden size. Equal
machines produce identical files.
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
    """Writes a policy file atomically: readers see the old file or the new one.

    Args:
        policy: The policy.
        path: The file; replaced if it exists.

    Returns:
        The path.

    Raises:
        PolicyError: The file cannot be written, or could not be read back; see
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
        PolicyError: The file does not exist, is damaged, is not a policy file, or was
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
    """Returns the content of a policy's file: JSON with a newline at its end."""
    return POLICIES.text(policy.to_json(), file_version(policy))


def parse_policy(text: str, source: str = "this text") -> StateMachine:
    """Parses the content of a policy file.

    Raises:
        PolicyError: As for `load_policy`.
    """
    return POLICIES.parse(text, source, _build)


def _upgraded(content: dict[str, Any], version: int) -> dict[str, Any]:
    """Adds the entries that files of earlier versions lack."""
    training = content.get("training")
    if version == 1:
        content = content | {"soft_bound": EQUAL_WEIGHTS.to_json([])}
        if isinstance(training, dict):
            # Version 1 had no tuning, and its patience covered all trials.
            patience = training.get("max_trials", 0)
            training = {"generations": 0, "patience": patience, "curve": []} | training
    if version <= 2 and isinstance(training, dict) and "held_out_agenda" in training:
        # Up to version 2, agenda-remaining was called agenda.
        remaining = {"held_out_agenda_remaining": training["held_out_agenda"]}
        training = training | remaining | {"held_out_agenda": None}
    return content | {"training": training}


def _build(content: dict[str, Any], version: int) -> StateMachine:
    """Builds the machine; raises `ValueError` with a clause that names the problem."""
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
