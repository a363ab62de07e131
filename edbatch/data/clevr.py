"""Reader of the programs in CLEVR's question files.

Format: JSON, ``{"questions": [{"program": [node, ...], "image_index": ..., "answer":
...}, ...]}``. A node names its function under ``function`` in the published files and
under ``type`` in files of newer generators; its value is under ``value_inputs`` or
``side_inputs``. Everything else in a file is ignored.
"""

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from edbatch.data.files import Paths, SourceText, read_sources
from edbatch.data.programs import Program
from edbatch.errors import DataError, shown
from edbatch.limits import UnreadableError, parse_json

SUFFIXES = (".json",)
FUNCTION_KEYS = ("function", "type")
VALUE_KEYS = ("value_inputs", "side_inputs")

_MOST_KEYS, _KEY_LENGTH = 3, 20  # limits for the keys in an error message
_BOOLEANS = {True: "yes", False: "no"}


def read_programs(path: Paths) -> list[Program]:
    r"""Reads the programs of CLEVR's question files.

    Args:
        path: A file, a folder (all its `.json` and `.json.gz`, recursively), or
            several of them.

    Returns:
        The programs, in the order of the files; values and answers are strings
        (``"yes"`` and ``"no"`` for booleans).

    Raises:
        DataError: A path is missing; or a file is unreadable, is not JSON, has no
            questions, or has a question whose program is missing or malformed.

    Example:
        >>> import pathlib, tempfile
        >>> text = '''{"questions": [{"image_index": 4, "answer": true, "program": [
        ...     {"function": "scene", "inputs": [], "value_inputs": []},
        ...     {"function": "exist", "inputs": [0], "value_inputs": []}]}]}'''
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder, "questions.json")
        ...     _ = file.write_text(text)
        ...     [program] = read_programs(file)
        >>> program.functions, program.image, program.answer
        (('scene', 'exist'), 4, 'yes')
    """
    return [
        program
        for source in read_sources(path, SUFFIXES)
        for program in _programs(source)
    ]


def _programs(source: SourceText) -> Iterator[Program]:
    try:
        content = parse_json(source.text)
    except UnreadableError as error:
        raise source.error_in(
            "",
            f"a question file must be JSON that can be read; found that {error};"
            " usually a damaged file, or another format; fetch it again",
        ) from None
    except json.JSONDecodeError as error:
        raise source.error_at(
            error.lineno,
            error.colno,
            f"a question file must be JSON; found that it is not ({error.msg}); "
            "usually a download that stopped early, or another format; fetch it again",
        ) from None
    questions = content.get("questions") if isinstance(content, dict) else None
    if not isinstance(questions, list):
        raise source.error_in(
            "",
            "a question file must have a list under 'questions'; found"
            f" {_described(content)}; usually a file of scenes; leave it out",
        )
    if not questions:
        raise source.error_without("question")
    for k, question in enumerate(questions):
        try:
            yield _program(question)
        except DataError as error:
            place, _, message = str(error).partition(": ")
            raise source.error_in(f", questions[{k}].{place}", message) from None


def _program(question: Any) -> Program:
    """Makes a program; error messages begin with the place in the question."""
    nodes = _member(question, "program", list)
    for k, node in enumerate(nodes):
        if not isinstance(node, dict):
            raise DataError(
                f"program[{k}]: a node must be an object; found {_described(node)};"
                " usually a program in another form; write functions and inputs"
            )
    return Program(
        tuple(_function(k, node) for k, node in enumerate(nodes)),
        tuple(_inputs(k, node) for k, node in enumerate(nodes)),
        tuple(_value(k, node) for k, node in enumerate(nodes)),
        _member(question, "image_index", int),
        _answer(question.get("answer")),
    )


def _member(question: Any, key: str, kind: type) -> Any:
    found = question.get(key) if isinstance(question, dict) else None
    if not isinstance(found, kind) or isinstance(found, bool):
        name = {list: "a list", int: "an integer"}[kind]
        raise DataError(
            f"{key}: a question must have {name} under {key!r}; found"
            f" {_described(question)}; usually the test part, whose programs are not"
            " published; take the train or val part"
        )
    return found


def _function(k: int, node: Mapping[str, Any]) -> str:
    for key in FUNCTION_KEYS:
        if key in node:
            return str(node[key])
    raise DataError(
        f"program[{k}]: a node must name its function under 'function' or 'type'; found"
        f" {_described(node)}; usually a program in another form; add the name"
    )


def _inputs(k: int, node: Mapping[str, Any]) -> tuple[Any, ...]:
    inputs = node.get("inputs")
    if not isinstance(inputs, list):
        raise DataError(
            f"program[{k}]: a node must have a list under 'inputs'; found"
            f" {_described(node)}; usually a program in another form; write [] where"
            " there is no input"
        )
    return tuple(inputs)


def _value(k: int, node: Mapping[str, Any]) -> str | None:
    for key in VALUE_KEYS:
        if key not in node:
            continue
        values = node[key]
        if values == []:
            return None
        if isinstance(values, list) and len(values) == 1 and isinstance(values[0], str):
            return values[0]
        raise DataError(
            f"program[{k}]: {key!r} must be a list of one string, or empty; found"
            f" {shown(values)}; usually a program in another form; a function takes one"
            " value at most"
        )
    return None


def _answer(answer: Any) -> str | None:
    if isinstance(answer, bool):
        return _BOOLEANS[answer]
    return None if answer is None else str(answer)


def _described(found: Any) -> str:
    if isinstance(found, dict):
        first = (shown(key, _KEY_LENGTH) for key in itertools.islice(found, _MOST_KEYS))
        more = ", ..." if len(found) > _MOST_KEYS else ""
        return f"an object with the keys {', '.join(first) or 'none'}{more}"
    return f"a JSON value of type {type(found).__name__}"
