"""Files of serving policies: policy files of the kind `serving`.

Each type is on one line with its weights, so that two policies can be compared with
``diff``. Like other policies, they name no shapes and work for every hidden size. But
the best decisions depend on the costs of batches, so a serving policy is trained for a
machine and a hidden size.
"""

from os import PathLike
from typing import Any

from edbatch.policies.files.json_file import (
    SERVING,
    check_file_names,
    check_names,
    read_entry,
    read_types,
)
from edbatch.policies.serving import limits
from edbatch.policies.serving.choices import FEATURES, WAITING
from edbatch.policies.serving.encoding import MachineState
from edbatch.policies.serving.machine import ServingMachine
from edbatch.policies.serving.record import ServingRecord
from edbatch.policies.serving.rule import ServingRule
from edbatch.schedule.serving.policy import Admission

Learned = ServingRule | ServingMachine


def load_serving_policy(path: str | PathLike[str]) -> Learned:
    """Reads a file of ``train-policy --serving``.

    Args:
        path: The file.

    Returns:
        The policy.

    Raises:
        PolicyError: The file does not exist, is damaged, is not a serving policy, or
            was written by a later version.

    Example:
        >>> from edbatch.policies.serving import affine_costs, serving_heuristics
        >>> from edbatch.schedule.examples import chain
        >>> from edbatch.schedule.serving import Arrivals, InstanceLibrary
        >>> from edbatch.schedule.serving import ServingConfig
        >>> library = InstanceLibrary.of([chain("ab")])
        >>> config = ServingConfig(affine_costs(2))
        >>> import tempfile
        >>> from edbatch.policies.serving import Objective, train_serving_machine
        >>> machine = train_serving_machine(
        ...     library,
        ...     config,
        ...     [Arrivals(rate=100)],
        ...     Objective("mean"),
        ...     episodes=4,
        ...     requests=20,
        ... )
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     load_serving_policy(machine.save(f"{folder}/s.json")) == machine
        True
    """
    path = SERVING.path(path)
    return SERVING.parse(SERVING.read(path), str(path), _build)


def parse_serving_policy(text: str, source: str = "this text") -> Learned:
    """Parses the content of a serving policy file.

    Raises:
        PolicyError: As for `load_serving_policy`.
    """
    return SERVING.parse(text, source, _build)


def _build(content: dict[str, Any], _version: int) -> Learned:
    """Builds the policy; raises `ValueError` with a clause that names the problem."""
    if content.get("kind") != "serving":
        raise ValueError("'kind' is not 'serving': it is a policy for minibatches")
    training = content.get("training")
    window = content.get("window_ms")
    if window is not None:
        window = read_entry(content, "the file", "window_ms", float)
    common = {
        "scale_ms": read_entry(content, "the file", "scale_ms", float),
        "admission": Admission(
            window, read_entry(content, "the file", "max_requests", int)
        ),
        "training": None if training is None else _record(training),
        "max_rows": limits.read(content),
    }
    entries = read_entry(content, "the file", "types", list)
    form = read_entry(content, "the file", "form", str)
    if form not in _FORMS:
        raise ValueError(f"'form' of the file is {form!r} and not 'rule' or 'machine'")
    found: Learned = _FORMS[form](content, entries, common)
    return found


def _build_rule(
    content: dict[str, Any], entries: list[Any], common: dict[str, Any]
) -> ServingRule:
    check_file_names(content, *_COMMON, "waiting")
    waiting = read_entry(content, "the file", "waiting", dict)
    check_names(waiting, "'waiting'", WAITING)
    return ServingRule(
        types=read_types(entries, *FEATURES),
        weights=tuple(_numbers(each, f"type {k}") for k, each in enumerate(entries)),
        waiting=tuple(read_entry(waiting, "'waiting'", n, float) for n in WAITING),
        **common,
    )


def _build_machine(
    content: dict[str, Any], entries: list[Any], common: dict[str, Any]
) -> ServingMachine:
    own = ("encoding", "heuristic", "wave", "states")
    check_file_names(content, *_COMMON, *own)
    types = read_types(entries, "depth")
    states: dict[MachineState, int] = {}
    for k, each in enumerate(read_entry(content, "the file", "states", list)):
        state, decision = _state(each, f"state {k}")
        if state in states:
            raise ValueError(f"state {k} repeats another")
        states[state] = decision
    return ServingMachine(
        types=types,
        encoding=read_entry(content, "the file", "encoding", str),
        states=states,
        heuristic=read_entry(content, "the file", "heuristic", str),
        wave=read_entry(content, "the file", "wave", int),
        depths=tuple(
            read_entry(each, f"type {k}", "depth", float)
            for k, each in enumerate(entries)
        ),
        **common,
    )


# Entries of all serving policies.
_COMMON = (
    *("kind", "form", "scale_ms", "window_ms", "max_requests", "max_rows"),
    *("types", "training"),
)
_FORMS: dict[str, Any] = {"rule": _build_rule, "machine": _build_machine}


def _state(entry: Any, where: str) -> tuple[MachineState, int]:
    sees = [
        read_entry({"sees": each}, where, "sees", int)
        for each in read_entry(entry, where, "sees", list)
    ]
    load, batches = (read_entry(entry, where, n, int) for n in ("load", "batches"))
    if min(load, batches, *sees, 0) < 0:
        raise ValueError(f"a number of {where} is negative")
    check_names(entry, where, (*MachineState._fields, "decides"))
    state = MachineState(load, batches, tuple(sees))
    return state, read_entry(entry, where, "decides", int)


def _numbers(entry: Any, where: str) -> tuple[float, ...]:
    return tuple(read_entry(entry, where, name, float) for name in FEATURES)


def _record(values: Any) -> ServingRecord:
    where = "'training'"
    found = {name: read_entry(values, where, name, k) for name, k in _RECORD.items()}
    for name in ("rates", "validation"):
        found[name] = tuple(
            read_entry({name: each}, where, name, float) for each in found[name]
        )
    for name in ("best_heuristics",):
        found[name] = tuple(
            read_entry({name: each}, where, name, str) for each in found[name]
        )
    found["versions"] = tuple(
        (name, read_entry(found["versions"], "'versions'", name, str))
        for name in found["versions"]
    )
    if "interrupted" in values:  # missing in older files
        found["interrupted"] = read_entry(values, where, "interrupted", bool)
    check_names(values, where, (*_RECORD, "interrupted"))
    return ServingRecord(**found)


_RECORD: dict[str, type] = {
    "method": str,
    "workload": str,
    "objective": str,
    "rates": list,
    "burst": float,
    "overhead_ms": float,
    "costs": str,
    "seed": int,
    "generations": int,
    "validation": list,
    "best_heuristics": list,
    "elapsed_s": float,
    "versions": dict,
}
