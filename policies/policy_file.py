"""Policy files: a state machine as JSON that people can read and compare.

The file holds one type, one state and one entry of the training record per line,
sorted, so that two policies can be compared with ``diff``. Types are named by cell,
parameters and arity, never by shapes: a policy serves every hidden size. Equal
machines give the same bytes.
"""

import json
from os import PathLike
from pathlib import Path
from typing import Any

from edbatch.errors import PolicyError, nearest
from edbatch.graph.node_type import TypeKey
from edbatch.policies.bound_weights import EQUAL_WEIGHTS, BoundWeights
from edbatch.policies.encoding import ENCODINGS, may_encode
from edbatch.policies.state_machine import MachineState, StateMachine
from edbatch.policies.training_record import TrainingRecord, is_number
from edbatch.policies.whole_file import write_whole

FORMAT = "edbatch-policy"
VERSION = 2


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
    path = Path(path)
    try:
        write_whole(path, policy_text(policy))
    except OSError as error:
        raise PolicyError(
            f"a policy is saved to a file in an existing, writable folder but {path}"
            f" cannot be written ({error.strerror}); name another"
        ) from error
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
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise PolicyError(_not_found(path)) from None
    except UnicodeDecodeError:
        raise PolicyError(f"{_NOT_JSON.format(path)} is not text") from None
    except OSError as error:
        raise PolicyError(
            f"a policy is read from a file but {path} cannot be read"
            f" ({error.strerror}); name a file that `policy.save` wrote"
        ) from error
    return parse_policy(text, str(path))


_NOT_JSON = "a policy file is JSON, written by `policy.save`, but {}"
_SAVE_AGAIN = "save or train the policy again"


def _not_found(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        hint = f"there is no folder {folder} either"
    else:
        files = [each.name for each in folder.iterdir() if each.suffix == ".json"]
        hint = nearest(path.name, files) if files else "its folder has no .json file"
    return f"there is no policy file {path}: {hint}"


def policy_text(policy: StateMachine) -> str:
    """Returns the content of a policy's file.

    Args:
        policy: The policy.

    Returns:
        JSON that ends in a new line.
    """
    labels = type_labels(policy.types)
    types = [
        {"cell": t.cell, "path": t.path, "arity": t.arity, "variant": t.variant}
        for t in policy.types
    ]
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
        f'"format": {_json(FORMAT)}',
        f'"version": {VERSION}',
        f'"encoding": {_json(policy.encoding)}',
        f'"types": {_lines("[]", [_json(each) for each in types])}',
        f'"soft_bound": {_json(policy.weights.to_json(labels))}',
        f'"states": {_lines("[]", [_json(each) for each in states])}',
    ]
    if policy.training is None:
        parts.append('"training": null')
    else:
        record = policy.training.to_json().items()
        entries = [f"{_json(name)}: {_json(value)}" for name, value in record]
        parts.append(f'"training": {_lines("{}", entries)}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


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
    return [
        text if texts.count(text) == 1 else f"{text}#{position}"
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
    content = _read_json(text, source)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise PolicyError(
            f'a policy file says "format": "{FORMAT}" but {source} is other JSON; name'
            " a file that `policy.save` wrote"
        )
    version = content.get("version")
    if type(version) is int and version > VERSION:
        raise PolicyError(
            f"this version of edbatch reads policy files up to version {VERSION} but"
            f" {source} has version {version}; install a newer edbatch"
        )
    try:
        if type(version) is not int or version < 1:
            raise ValueError(f"'version' is {version!r}")
        return _build(_upgraded(content) if version == 1 else content)
    except ValueError as error:
        raise PolicyError(
            f"a policy file keeps to the format of its version but in {source}"
            f" {error}; {_SAVE_AGAIN}"
        ) from None


def _read_json(text: str, source: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except ValueError as error:
        start = text.lstrip()
        if not start:
            what = f"{source} is empty; {_SAVE_AGAIN}"
        elif start.startswith("{") and not text.rstrip().endswith("}"):
            what = f"{source} ends too early and is truncated; {_SAVE_AGAIN}"
        else:
            what = f"{source} is not ({error}); name another file, or {_SAVE_AGAIN}"
    except RecursionError:
        what = f"{source} is nested too deeply; name another file"
    raise PolicyError(_NOT_JSON.format(what))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _upgraded(content: dict[str, Any]) -> dict[str, Any]:
    """Adds what version 1 did not have to what was read from such a file."""
    content = content | {"soft_bound": EQUAL_WEIGHTS.to_json([])}
    training = content.get("training")
    if isinstance(training, dict):
        # There was no tuning, and patience for all trials.
        patience = training.get("max_trials", 0)
        new = {"generations": 0, "patience": patience, "curve": []}
        content["training"] = new | training
    return content


def _build(content: dict[str, Any]) -> StateMachine:
    """Builds the machine; raises `ValueError` with a clause that says what is wrong."""
    encoding = _entry(content, "the file", "encoding", str)
    if encoding not in ENCODINGS:
        hint = nearest(encoding, ENCODINGS)
        raise ValueError(f"the encoding {encoding!r} is unknown, {hint}")
    types = []
    for k, each in enumerate(_entry(content, "the file", "types", list)):
        where = f"type {k}"
        types.append(
            TypeKey(
                cell=_entry(each, where, "cell", str),
                path=_entry(each, where, "path", str),
                arity=_entry(each, where, "arity", int),
                variant=_entry(each, where, "variant", int),
            )
        )
        if types.index(types[-1]) < k:
            raise ValueError(f"type {k} repeats {types[-1]}")
    position = {label: k for k, label in enumerate(type_labels(tuple(types)))}
    states: dict[tuple[int, ...], MachineState] = {}
    for k, each in enumerate(_entry(content, "the file", "states", list)):
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
        types=tuple(types),
        encoding=encoding,
        states=tuple(states.values()),
        weights=BoundWeights.from_json(content.get("soft_bound"), [*position]),
        training=None if training is None else TrainingRecord.from_json(training),
    )


def _state(each: Any, where: str, position: dict[str, int]) -> MachineState:
    frontier = _entry(each, where, "frontier", list)
    labels = [*frontier, _entry(each, where, "action", str)]
    for label in labels:
        if not isinstance(label, str) or label not in position:
            hint = nearest(str(label), position)
            raise ValueError(f"{where} refers to an unknown type {label!r}, {hint}")
    *symbols, action = [position[label] for label in labels]
    visits = _entry(each, where, "visits", int)
    value = _entry(each, where, "value", float)
    return MachineState(tuple(symbols), action, visits, value)


def _entry(values: Any, where: str, name: str, kind: type) -> Any:
    if not isinstance(values, dict):
        raise ValueError(f"{where} is not an object")
    if name not in values:
        raise ValueError(f"{where} has no {name!r}")
    value = values[name]
    if kind is float and is_number(value):
        return float(value)
    if kind is float or type(value) is not kind:
        raise ValueError(f"{name!r} of {where} is not a JSON {_KINDS[kind]}")
    return value


_KINDS = {str: "string", int: "integer", float: "number", list: "array"}
