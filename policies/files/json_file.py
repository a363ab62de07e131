"""Common JSON format of policy files and cost files.

Each file states its format and version. A reader builds an object from the entries, and
raises `ValueError` with a clause that names the problem. This module turns the clause
into a `PolicyError` that names the file and the fix.
"""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from edbatch.arguments import as_path
from edbatch.errors import PolicyError, nearest, shown
from edbatch.graph.node_type import TypeKey
from edbatch.limits import UnreadableError, parse_json, read_bytes
from edbatch.policies.files.whole_file import write_whole
from edbatch.policies.fsm.training_record import is_number

T = TypeVar("T")

_MAX_BYTES = 2**28
_MISSPELT = 0.8  # least similarity, by `difflib`, of a misspelt name to a known one
_AGAIN = re.compile(r"; train [\w ]+ again$")  # replaced by `JsonFormat.again`

_KINDS = {
    str: "string",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}


@dataclass(frozen=True)
class JsonFormat:
    """A file format and the wording of its error messages.

    Attributes:
        what: Noun for the content, such as ``"policy"``.
        subject: Subject and verb of a sentence, such as ``"a policy is"``.
        name: Value of the entry ``format``.
        version: Latest version that can be read; also the version that is written,
            unless an earlier one suffices.
        writer: Command or function that writes such files.
        again: Advice on how to recreate such a file.
        by_line: Entries whose own entries are written one per line.
        other_kinds: Values of the entry ``kind`` that need another reader, each with
            advice that names the reader.
    """

    what: str
    subject: str
    name: str
    version: int
    writer: str
    again: str
    by_line: frozenset[str]
    other_kinds: tuple[tuple[str, str], ...] = ()

    def text(self, content: dict[str, Any], version: int | None = None) -> str:
        """Returns the text of a file, with a newline at its end.

        Args:
            content: The entries.
            version: The first version that has all these entries; None for the latest.

        Returns:
            The text.
        """
        header = {"format": self.name, "version": version or self.version}
        parts = [
            f"{json_text(name)}: {self._value_text(name, value)}"
            for name, value in (header | content).items()
        ]
        return "{\n" + ",\n".join(parts) + "\n}\n"

    def _value_text(self, name: str, value: Any) -> str:
        if name not in self.by_line or not value:
            return json_text(value)
        if isinstance(value, dict):
            entries = [f"{json_text(k)}: {json_text(v)}" for k, v in value.items()]
        else:
            entries = [json_text(each) for each in value]
        inside = ",\n".join(f"  {each}" for each in entries)
        return f"{{\n{inside}\n}}" if isinstance(value, dict) else f"[\n{inside}\n]"

    def save(
        self,
        path: str | PathLike[str],
        content: dict[str, Any],
        version: int | None = None,
    ) -> Path:
        """Writes a file atomically: readers see the old file or the new one.

        Args:
            path: The file; replaced if it exists.
            content: The entries.
            version: The first version that has all these entries; None for the latest.

        Returns:
            The path.

        Raises:
            PolicyError: The file cannot be written.
        """
        path = self.path(path)
        text = self.text(content, version).encode()
        try:
            write_whole(path, lambda temporary: temporary.write_bytes(text))
        except OSError as error:
            raise PolicyError(
                f"{self.subject} saved to a file in an existing, writable folder but"
                f" {path} cannot be written ({error.strerror}); name another"
            ) from error
        return path

    def path(self, value: object) -> Path:
        """Converts a user's argument to a path; raises `PolicyError` if that fails."""
        return as_path(PolicyError, f"a {self.what} file", value)

    def read(self, path: Path) -> str:
        """Reads a file.

        Raises:
            PolicyError: The file does not exist, cannot be read, is too large or is not
                text.
        """
        try:
            return read_bytes(path, _MAX_BYTES).decode("utf-8")
        except FileNotFoundError:
            raise PolicyError(self._not_found(path)) from None
        except UnicodeDecodeError:
            raise PolicyError(self._not_json(f"{path} is not text")) from None
        except UnreadableError as error:
            raise PolicyError(
                f"{self.subject} read from a file but of {path}, {error}; name a file"
                f" that {self.writer} wrote"
            ) from None
        except OSError as error:
            raise PolicyError(
                f"{self.subject} read from a file but {path} cannot be read"
                f" ({error.strerror}); name a file that {self.writer} wrote"
            ) from error

    def parse(
        self, text: str, source: str, build: Callable[[dict[str, Any], int], T]
    ) -> T:
        """Parses the text of a file and builds an object from its entries.

        Args:
            text: The text of the file.
            source: Where it comes from, for messages.
            build: Takes the entries and the version; raises `ValueError` with a clause
                that names the problem.

        Returns:
            The result of `build`.

        Raises:
            PolicyError: The text is damaged, has another format, or a later version.
        """
        content = self._read_json(text, source)
        if not isinstance(content, dict) or content.get("format") != self.name:
            raise PolicyError(
                f'a {self.what} file says "format": "{self.name}" but {source} is other'
                f" JSON; name a file that {self.writer} wrote"
            )
        for kind, reader in self.other_kinds:
            if content.get("kind") == kind:
                raise PolicyError(
                    f"{self.subject} read from a {self.what} file but {source} is of"
                    f" the kind {kind!r}; {reader}"
                )
        version = content.get("version")
        if type(version) is int and version > self.version:
            raise PolicyError(
                f"this version of edbatch reads {self.what} files up to version"
                f" {self.version} but {source} has version {shown(version)}; install a"
                " newer edbatch"
            )
        try:
            if type(version) is not int or version < 1:
                raise ValueError(f"'version' is {shown(version)}")
            return build(content, version)
        except ValueError as error:
            raise PolicyError(
                f"a {self.what} file keeps to the format of its version but in"
                f" {source} {_AGAIN.sub('', str(error))}; {self.again}"
            ) from None

    def _read_json(self, text: str, source: str) -> Any:
        try:
            return parse_json(
                text,
                parse_constant=_refuse_constant,
                object_pairs_hook=_each_once,
            )
        except ValueError as error:
            start = text.lstrip()
            if not start:
                problem = f"{source} is empty; {self.again}"
            elif start.startswith("{") and not text.rstrip().endswith("}"):
                problem = f"{source} ends too early and is truncated; {self.again}"
            else:
                problem = (
                    f"{source} is not ({error}); name another file, or {self.again}"
                )
        raise PolicyError(self._not_json(problem))

    def _not_json(self, problem: str) -> str:
        return f"a {self.what} file is JSON, written by {self.writer}, but {problem}"

    def _not_found(self, path: Path) -> str:
        folder = path.parent
        if str(path).startswith("zoo:"):
            return (
                f"{path} names a ready-made policy, which is no file; pass the name to"
                " eb.batch, or to get_policy of edbatch.policies"
            )
        if not folder.is_dir():
            hint = f"there is no folder {folder} either"
        else:
            hint = _names_beside(path)
        return f"there is no {self.what} file {path}: {hint}"


def _names_beside(path: Path) -> str:
    try:
        files = [each.name for each in path.parent.iterdir() if each.suffix == ".json"]
    except OSError:
        return "its folder cannot be listed"
    return nearest(path.name, files) if files else "its folder has no .json file"


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Builds an object from its entries; raises `ValueError` on a duplicate name."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(each for each in names if names.count(each) > 1)
        raise ValueError(f"one object has {shown(twice)} twice")
    return found


def json_text(value: Any) -> str:
    """Writes a value as JSON, on one line."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def type_entry(key: TypeKey) -> dict[str, Any]:
    """Returns the JSON entry of a type."""
    return {name: getattr(key, name) for name in _TYPE_KEY}


_HEADER = ("format", "version")
_TYPE_KEY = {"cell": str, "path": str, "arity": int, "variant": int}


def read_types(entries: list[Any], *others: str) -> tuple[TypeKey, ...]:
    """Reads types from their entries.

    Args:
        entries: Their JSON values.
        *others: Names of further entries of a type, besides the fields of its key.

    Returns:
        The types.

    Raises:
        ValueError: An entry is wrong or misspelt, or repeats a type.
    """
    types: dict[TypeKey, None] = {}
    for k, each in enumerate(entries):
        where = f"type {k}"
        key = TypeKey(*(read_entry(each, where, n, t) for n, t in _TYPE_KEY.items()))
        check_names(each, where, (*_TYPE_KEY, *others))
        if min(key.arity, key.variant) < 0:
            raise ValueError(f"'arity' or 'variant' of {where} is negative")
        if key in types:
            raise ValueError(f"{where} repeats {shown(str(key))}")
        types[key] = None
    return tuple(types)


def read_entry(values: Any, where: str, name: str, kind: type) -> Any:
    """Reads one entry of an object.

    Args:
        values: A JSON value, which should be an object.
        where: Description of the object, for messages.
        name: The entry.
        kind: The expected type; an integer is accepted for a float.

    Returns:
        The value of the entry.

    Raises:
        ValueError: The value is not an object, lacks the entry, or the entry has
            another type.

    Example:
        >>> read_entry({"visits": 3}, "state 0", "visits", float)
        3.0
    """
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


def check_names(values: dict[str, Any], where: str, known: Iterable[str]) -> None:
    """Checks that an object has no misspelt entries.

    Other unknown entries are allowed: comments, or additions of a later version.

    Raises:
        ValueError: An entry is misspelt.
    """
    names = [*known]
    for name in values:
        if name not in names and get_close_matches(name, names, 1, _MISSPELT):
            hint = nearest(name, names)
            raise ValueError(f"{where} has an unknown entry {shown(name)}, {hint}")


def check_file_names(content: dict[str, Any], *known: str) -> None:
    """Checks the top-level entries of a file for misspelt names."""
    check_names(content, "the file", (*_HEADER, *known))


# Version 4 of policy files added the entry `by_cost` of training records. Files without
# it are still written as version 3, so that older releases of edbatch can read them.
BY_BATCHES = 3
POLICIES = JsonFormat(
    what="policy",
    subject="a policy is",
    name="edbatch-policy",
    version=4,
    writer="`policy.save`",
    again="save or train the policy again",
    by_line=frozenset({"types", "states", "training"}),
    other_kinds=(
        ("serving", "read it by load_serving_policy, or edbatch compare --serving"),
    ),
)
# Policies for serving are policy files, too: version 4 added the kind `serving`, and
# version 5 the entry `max_rows`. Files without that entry are still written as version
# 4, so that older releases can read them.
SERVING_UNLIMITED = 4
SERVING = JsonFormat(
    what="policy",
    subject="a serving policy is",
    name=POLICIES.name,
    version=5,
    writer="`train-policy --serving`",
    again="train the policy again",
    by_line=frozenset({"types", "states", "training"}),
)
COSTS = JsonFormat(
    what="cost",
    subject="costs are",
    name="edbatch-costs",
    version=1,
    writer="edbatch calibrate",
    again="run edbatch calibrate again",
    by_line=frozenset({"types"}),
)
