"""Policy files: a state machine as JSON that people can read and compare.

The file holds one type, one state and one entry of the training record per line,
sorted, so that two policies can be compared with ``diff``. Types are named by cell,
parameters and arity, never by shapes: a policy serves every hidden size. Equal
machines give the same bytes.
"""

from collections import Counter
from os import PathLike
from pathlib import Path
from typing import Any

from edbatch.errors import nearest, shown
from edbatch.graph.node_type import TypeKey
from edbatch.policies.files.json_file import (
    JsonFormat,
    json_text,
    read_entry,
    read_types,
    type_entry,
)
from edbatch.policies.fsm.encoding import ENCODINGS, may_encode
from edbatch.policies.fsm.state_machine import MachineState, StateMachine
from edbatch.policies.fsm.training_record import TrainingRecord
from edbatch.policies.smooth_bound.weights import EQUAL_WEIGHTS, BoundWeights

FORMAT = JsonFormat(
    what="policy",
    subject="a policy is",
    name="edbatch-policy",
    version=3,
    writer="`policy.save`",
    again="save or train the policy again",
)


def save_policy(policy: StateMachine, path: str | PathLike[str]) -> Path:
    """Writes a policy; a reader sees the old file or the new one, never a part.

    Args:
        policy: The policy.
        path: The file; replaced if it exists.

    Returns:
        The path.

    Raises:
        PolicyError: The file cannot be written.
    """
    path = FORMAT.path(path)
    FORMAT.write(path, policy_text(policy))
    return path


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
    path = FORMAT.path(path)
    return parse_policy(FORMAT.read(path), str(path))


def policy_text(policy: StateMachine) -> str:
    """Returns the content of a policy's file.

    Args:
        policy: The policy.

    Returns:
        JSON that ends in a new line.
    """
    labels = type_labels(policy.types)
    types = map(type_entry, policy.types)
    states = [
        {
            "frontier": [labels[symbol] for symbol in state.frontier],
            "action": labels[state.action],
            "visits": state.visits,
            "value": state.value,
        }
        for state in policy.states
    ]
    parts = [
        f'"format": {json_text(FORMAT.name)}',
        f'"version": {FORMAT.version}',
        f'"encoding": {json_text(policy.encoding)}',
        f'"types": {_lines("[]", [json_text(each) for each in types])}',
        f'"soft_bound": {json_text(policy.weights.to_json(labels))}',
        f'"states": {_lines("[]", [json_text(each) for each in states])}',
    ]
    if policy.training is None:
        parts.append('"training": null')
    else:
        record = policy.training.to_json().items()
        entries = [f"{json_text(name)}: {json_text(value)}" for name, value in record]
        parts.append(f'"training": {_lines("{}", entries)}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _lines(brackets: str, entries: list[str]) -> str:
    inside = ",\n".join(f"  {entry}" for entry in entries)
    return f"{brackets[0]}\n{inside}\n{brackets[1]}" if entries else brackets


def type_labels(types: tuple[TypeKey, ...]) -> list[str]:
    """Names the types of a policy in its states.

    Args:
        types: The types.

    Returns:
        Their texts; with the position appended where two agree.

    Example:
        >>> type_labels((TypeKey("leaf", "", 0), TypeKey("compose", "enc", 4)))
        ['leaf/0', 'compose@enc/4']
    """
    texts = [str(key) for key in types]
    count = Counter(texts)
    return [
        text if count[text] == 1 else f"{text}#{position}"
        for position, text in enumerate(texts)
    ]


def parse_policy(text: str, source: str = "this text") -> StateMachine:
    """Reads the content of a policy file.

    Args:
        text: The content.
        source: Where it comes from, for messages.

    Returns:
        The policy.

    Raises:
        PolicyError: As for `load_policy`.
    """
    return FORMAT.parse(text, source, _build)


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
    content = _upgraded(content, version)
    encoding = read_entry(content, "the file", "encoding", str)
    if encoding not in ENCODINGS:
        hint = nearest(encoding, ENCODINGS)
        raise ValueError(f"the encoding {shown(encoding)} is unknown, {hint}")
    types = read_types(read_entry(content, "the file", "types", list))
    position = {label: k for k, label in enumerate(type_labels(types))}
    states: dict[tuple[int, ...], MachineState] = {}
    for k, each in enumerate(read_entry(content, "the file", "states", list)):
        state = _state(each, f"state {k}", position)
        if state.frontier in states:
            raise ValueError(f"state {k} repeats the frontier of another")
        if state.action not in state.frontier:
            raise ValueError(f"state {k} has an action that is not on its frontier")
        if not may_encode(encoding, state.frontier):
            raise ValueError(
                f"state {k} has a frontier that is never the encoding {encoding!r} of"
                " one"
            )
        states[state.frontier] = state
    training = content.get("training")
    return StateMachine(
        types=types,
        encoding=encoding,
        states=tuple(states.values()),
        weights=BoundWeights.from_json(content.get("soft_bound"), [*position]),
        training=None if training is None else TrainingRecord.from_json(training),
    )


def _state(each: Any, where: str, position: dict[str, int]) -> MachineState:
    frontier = read_entry(each, where, "frontier", list)
    labels = [*frontier, read_entry(each, where, "action", str)]
    for label in labels:
        if not isinstance(label, str) or label not in position:
            hint = nearest(str(label), position)
            raise ValueError(
                f"{where} refers to an unknown type {shown(label)}, {hint}"
            )
    *symbols, action = [position[label] for label in labels]
    visits = read_entry(each, where, "visits", int)
    value = read_entry(each, where, "value", float)
    return MachineState(tuple(symbols), action, visits, value)
