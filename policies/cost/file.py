"""Cost files: measured times of cells as readable JSON that can be diffed.

One type per line, named as in policy files. Unlike a policy, costs are specific to a
hidden size and a machine; the file records both.
"""

from os import PathLike
from pathlib import Path
from typing import Any

from edbatch.errors import PolicyError
from edbatch.policies.cost.model import CostModel, CostRecord
from edbatch.policies.files.json_file import (
    COSTS,
    check_file_names,
    check_names,
    read_entry,
    read_types,
)


def save_costs(costs: CostModel, path: str | PathLike[str]) -> Path:
    """Writes a cost file atomically: readers see the old file or the new one.

    Args:
        costs: The costs.
        path: The file; replaced if it exists.

    Returns:
        The path.

    Raises:
        PolicyError: The file cannot be written.

    Example:
        >>> import tempfile
        >>> from edbatch.policies import CostModel, load_costs
        >>> from edbatch.schedule.examples import chain
        >>> keys = chain("a").type_keys
        >>> costs = CostModel(keys, (2, 4), ((300.0, 400.0),), (2,), (1.0,))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     load_costs(save_costs(costs, f"{folder}/costs.json")) == costs
        True
    """
    return costs.save(path)


def get_costs(costs: Any) -> CostModel | None:
    """Returns measured costs, reading them if given a path.

    Args:
        costs: A `CostModel`, the path of a cost file, or None for no costs.

    Raises:
        PolicyError: `costs` is none of these, or the file cannot be read.
    """
    if isinstance(costs, str | PathLike):
        return load_costs(costs)
    if costs is None or isinstance(costs, CostModel):
        return costs
    raise PolicyError(
        "costs are a file of 'edbatch calibrate', or what load_costs read from it, but"
        f" here they are {type(costs).__name__}; give the file"
    )


def load_costs(path: str | PathLike[str]) -> CostModel:
    """Reads a cost file.

    Args:
        path: The file.

    Returns:
        The costs.

    Raises:
        PolicyError: The file does not exist, is damaged, is not a cost file, or was
            written by a later version.

    Example:
        >>> from edbatch.graph import TypeKey
        >>> costs = CostModel((TypeKey("a", "", 0),), (4,), ((2.5,),), (1,), (1.0,))
        >>> path = costs.save("costs.json")
        >>> load_costs(path) == costs
        True
        >>> path.unlink()
    """
    path = COSTS.path(path)
    return parse_costs(COSTS.read(path), str(path))


def parse_costs(text: str, source: str = "this text") -> CostModel:
    """Parses the content of a cost file.

    Raises:
        PolicyError: As for `load_costs`.
    """
    return COSTS.parse(text, source, _build)


def _build(content: dict[str, Any], _version: int) -> CostModel:
    """Builds the costs; raises `ValueError` with a clause that names the problem."""
    types = read_entry(content, "the file", "types", list)
    where = [f"type {k}" for k in range(len(types))]
    rows = list(zip(types, where, strict=True))
    record = content.get("record")
    own = ("types", "widths", "switch_us", "call_us", "record")
    check_file_names(content, *own)
    return CostModel(
        types=read_types(types, "chunk_us", "measured_widths", "batches"),
        widths=_numbers(content, "the file", "widths", int),
        chunk_us=tuple(_numbers(each, at, "chunk_us", float) for each, at in rows),
        measured_widths=_column(rows, "measured_widths", int),
        batches=_column(rows, "batches", float),
        switch_us=read_entry(content, "the file", "switch_us", float),
        call_us=read_entry(content, "the file", "call_us", float),
        record=None if record is None else _record(record),
    )


def _record(values: Any) -> CostRecord:
    kinds = dict(_RECORD)
    if isinstance(values, dict) and values.get("hidden", 0) is None:
        kinds["hidden"] = type(None)
    entries = {
        name: read_entry(values, "'record'", name, kind) for name, kind in kinds.items()
    }
    check_names(values, "'record'", _RECORD)
    return CostRecord(**entries)


def _column(rows: list[tuple[Any, str]], name: str, kind: type) -> tuple[Any, ...]:
    return tuple(read_entry(each, where, name, kind) for each, where in rows)


def _numbers(values: Any, where: str, name: str, kind: type) -> tuple[Any, ...]:
    found = read_entry(values, where, name, list)
    return tuple(read_entry({name: each}, where, name, kind) for each in found)


_RECORD: dict[str, type] = {
    "workload": str,
    "device": str,
    "jax": str,
    "hidden": int,
    "batch_size": int,
    "minibatches": int,
    "rounds": int,
    "error_percent": float,
}
