"""Cost files: measured times of cells as JSON that people can read and compare.

One type per line, named as in policy files. Unlike a policy, costs belong to a hidden
size and to a machine; the file says to which.
"""

import json
from dataclasses import fields
from os import PathLike
from pathlib import Path
from typing import Any

from edbatch.errors import PolicyError
from edbatch.graph.node_type import TypeKey
from edbatch.policies.cost_model import CostModel, CostRecord
from edbatch.policies.whole_file import write_whole

FORMAT = "edbatch-costs"
VERSION = 1


def save_costs(costs: CostModel, path: str | PathLike[str]) -> Path:
    """Writes costs; a reader sees the old file or the new one, never a part.

    Args:
        costs: The costs.
        path: The file; replaced if it exists.

    Returns:
        The path.

    Raises:
        PolicyError: The file cannot be written.
    """
    path = Path(path)
    try:
        write_whole(path, costs_text(costs))
    except OSError as error:
        raise PolicyError(
            f"costs are saved to a file in an existing, writable folder but {path}"
            f" cannot be written ({error.strerror}); name another"
        ) from error
    return path


def load_costs(path: str | PathLike[str]) -> CostModel:
    """Reads a cost file.

    Args:
        path: The file.

    Returns:
        The costs.

    Raises:
        PolicyError: The file does not exist, is damaged, is no cost file, or was
            written by a later version.

    Example:
        >>> costs = CostModel((TypeKey("a", "", 0),), (4,), ((2.5,),), (1,), (1.0,))
        >>> path = costs.save("costs.json")
        >>> load_costs(path) == costs
        True
        >>> path.unlink()
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise PolicyError(f"{_NOT_JSON.format(path)} is not text") from None
    except OSError as error:
        raise PolicyError(
            f"costs are read from a file but {path} cannot be read ({error.strerror});"
            " name a file that edbatch calibrate wrote"
        ) from error
    return parse_costs(text, str(path))


_NOT_JSON = "a cost file is JSON, written by edbatch calibrate, but {}"
_AGAIN = "run edbatch calibrate again"


def costs_text(costs: CostModel) -> str:
    """Returns the content of a cost file.

    Args:
        costs: The costs.

    Returns:
        JSON that ends in a new line.
    """
    rows = zip(
        costs.types, costs.batches, costs.measured_widths, costs.chunk_us, strict=True
    )
    types = [
        {
            **{name: getattr(key, name) for name in _KEY},
            "batches": batches,
            "measured_widths": measured,
            "chunk_us": list(chunk_us),
        }
        for key, batches, measured, chunk_us in rows
    ]
    record = costs.record
    content = {
        "format": FORMAT,
        "version": VERSION,
        "widths": list(costs.widths),
        "switch_us": costs.switch_us,
        "call_us": costs.call_us,
        "record": None
        if record is None
        else {each.name: getattr(record, each.name) for each in fields(record)},
    }
    parts = [f"{_json(name)}: {_json(value)}" for name, value in content.items()]
    lines = ",\n".join(f"  {_json(each)}" for each in types)
    return "{\n" + ",\n".join([*parts, f'"types": [\n{lines}\n]']) + "\n}\n"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def parse_costs(text: str, source: str = "this text") -> CostModel:
    """Reads the content of a cost file.

    Args:
        text: The content.
        source: Where it comes from, for messages.

    Returns:
        The costs.

    Raises:
        PolicyError: As for `load_costs`.
    """
    try:
        content = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise PolicyError(
            f"{_NOT_JSON.format(source)} is not, or cut short ({error}); name another"
            f" file, or {_AGAIN}"
        ) from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise PolicyError(
            f'a cost file says "format": "{FORMAT}" but {source} is other JSON; name a'
            " file that edbatch calibrate wrote"
        )
    version = content.get("version")
    if type(version) is int and version > VERSION:
        raise PolicyError(
            f"this version of edbatch reads cost files up to version {VERSION} but"
            f" {source} has version {version}; install a newer edbatch"
        )
    try:
        if type(version) is not int or version < 1:
            raise ValueError(f"'version' is {version!r}")
        return _build(content)
    except ValueError as error:
        raise PolicyError(
            f"a cost file keeps to the format of its version but in {source} {error};"
            f" {_AGAIN}"
        ) from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _build(content: dict[str, Any]) -> CostModel:
    """Builds the costs; raises `ValueError` with a clause that says what is wrong."""
    types = _entry(content, "the file", "types", list)
    where = [f"type {k}" for k in range(len(types))]
    rows = list(zip(types, where, strict=True))
    keys = [TypeKey(*(_entry(e, at, n, k) for n, k in _KEY.items())) for e, at in rows]
    for k, key in enumerate(keys):
        if keys.index(key) < k:
            raise ValueError(f"type {k} repeats {key}")
    record = content.get("record")
    return CostModel(
        types=tuple(keys),
        widths=_numbers(content, "the file", "widths", int),
        chunk_us=tuple(_numbers(each, at, "chunk_us", float) for each, at in rows),
        measured_widths=tuple(_entry(e, at, "measured_widths", int) for e, at in rows),
        batches=tuple(_entry(each, at, "batches", float) for each, at in rows),
        switch_us=_entry(content, "the file", "switch_us", float),
        call_us=_entry(content, "the file", "call_us", float),
        record=None if record is None else _record(record),
    )


def _record(values: Any) -> CostRecord:
    kinds = dict(_RECORD)
    if isinstance(values, dict) and values.get("hidden", 0) is None:
        kinds["hidden"] = type(None)
    return CostRecord(**{n: _entry(values, "'record'", n, k) for n, k in kinds.items()})


def _numbers(values: Any, where: str, name: str, kind: type) -> tuple[Any, ...]:
    found = _entry(values, where, name, list)
    return tuple(_entry({name: each}, where, name, kind) for each in found)


def _entry(values: Any, where: str, name: str, kind: type) -> Any:
    if not isinstance(values, dict):
        raise ValueError(f"{where} is not an object")
    if name not in values:
        raise ValueError(f"{where} has no {name!r}")
    value = values[name]
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ValueError(f"{name!r} of {where} is not a JSON {_KINDS[kind]}")
    return value


_KINDS = {
    str: "string",
    int: "integer",
    float: "number",
    list: "array",
    type(None): "null",
}
_KEY = {"cell": str, "path": str, "arity": int, "variant": int}
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
