import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from edbatch.data import DataError, read_programs
from edbatch.data.programs import FUNCTIONS


def node(function: str, *inputs: int, value: str | None = None) -> dict[str, Any]:
    values = [] if value is None else [value]
    return {"function": function, "inputs": list(inputs), "value_inputs": values}


PROGRAM = [node("scene"), node("filter_size", 0, value="small"), node("count", 1)]


def question(program: Any = PROGRAM, **others: Any) -> dict[str, Any]:
    return {"image_index": 5, "program": program, "answer": "2"} | others


def write(folder: Path, *questions: Any) -> Path:
    file = folder / "questions.json"
    file.write_text(json.dumps({"info": {}, "questions": questions}))
    return file


def test_a_program_is_read(tmp_path: Path) -> None:
    [program] = read_programs(write(tmp_path, question()))
    assert program.functions == ("scene", "filter_size", "count")
    assert program.inputs == ((), (0,), (1,))
    assert program.values == (None, "small", None)
    assert (program.image, program.answer, program.features) == (5, "2", None)


@pytest.mark.parametrize("function_key", ["function", "type"])
@pytest.mark.parametrize("value_key", ["value_inputs", "side_inputs"])
def test_all_names_of_the_keys(
    tmp_path: Path, function_key: str, value_key: str
) -> None:
    renamed = [
        {
            function_key: each["function"],
            "inputs": each["inputs"],
            value_key: each["value_inputs"],
            "_output": [1, 2],
        }
        for each in PROGRAM
    ]
    usual, other = read_programs(write(tmp_path, question(), question(renamed)))
    assert usual == other


def test_values_may_be_left_out_where_there_is_none(tmp_path: Path) -> None:
    nodes = [{"type": "scene", "inputs": []}, {"type": "count", "inputs": [0]}]
    [program] = read_programs(write(tmp_path, question(nodes)))
    assert program.values == (None, None)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [(True, "yes"), (False, "no"), ("yes", "yes"), (3, "3"), ("3", "3"), (None, None)],
)
def test_answers(tmp_path: Path, answer: Any, expected: str | None) -> None:
    [program] = read_programs(write(tmp_path, question(answer=answer)))
    assert program.answer == expected


def test_folders_and_gzip(tmp_path: Path) -> None:
    text = write(tmp_path, question(), question()).read_bytes()
    (tmp_path / "more.json.gz").write_bytes(gzip.compress(text))
    assert len(read_programs(tmp_path)) == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"questions":\n [,]}',
            r"questions\.json, line 2, column 3: a question file must be JSON; found"
            r" that it is not \(Expecting value\); usually a download that stopped",
        ),
        (
            '{"info": 1, "scenes": []}',
            r"must have a list under 'questions'; found an object with the keys 'info',"
            " 'scenes'; usually a file of scenes",
        ),
        ("[]", "under 'questions'; found a JSON value of type list; usually"),
        ('{"questions": {}}', "must have a list under 'questions'; found an object"),
        ('{"questions": []}', "a file must hold at least one question; found none"),
    ],
)
def test_files_that_are_none(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "questions.json"
    file.write_text(text)
    with pytest.raises(DataError, match=message):
        read_programs(file)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (
            {"image_index": 1, "question": "?"},
            r"questions\[1\]\.program: a question must have a list under 'program';"
            " found an object with the keys 'image_index', 'question'; usually the test"
            " part",
        ),
        ("?", r"questions\[1\]\.program: .* found a JSON value of type str; usually"),
        (question(image_index=True), r"\.image_index: a question must have an integer"),
        (question([]), r"questions\[1\]\.program: a Program must have one function or"),
        (question(["scene"]), r"program\[0\]: a node must be an object; found a JSON"),
        (
            question([{"inputs": []}]),
            r"questions\[1\]\.program\[0\]: a node must name its function under"
            " 'function' or 'type'; found an object with the keys 'inputs'; usually",
        ),
        (
            question([{"type": "scene"}]),
            "must have a list under 'inputs'; found an obj",
        ),
        (
            question([node("scene"), node("filter_shade", 0, value="dark")]),
            r"program\[1\]: a function must be one of the 26 .* did you mean 'filter_s",
        ),
        (question([{"type": ["scene"], "inputs": []}]), r"found \"\['scene'\]\"; us"),
        (
            question([node("scene"), node("count", 2), node("count", 1)]),
            r"questions\[1\]\.program\[1\]: .* before it; found 2 for 'count', which is"
            " at 1; usually a program in another order, or with a cycle",
        ),
        (question([node("scene"), node("count")]), r"must be \(objects\); found \(\)"),
        (
            question([{"type": "scene", "inputs": [], "side_inputs": ["a", "b"]}]),
            r"program\[0\]: 'side_inputs' must be a list of one string, or empty; found"
            r" \['a', 'b'\]; usually",
        ),
        (question([node("scene"), node("relate", 0, value="left")]), "must be .object"),
        (
            question([node("scene"), node("filter_size", 0)]),
            r"program\[1\]: 'filter_size' must have a value; found None",
        ),
    ],
)
def test_malformed_questions(tmp_path: Path, found: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_programs(write(tmp_path, question(), found))


def test_generated_questions_are_read(shared_data: Path) -> None:
    folder = shared_data / "clevr_questions_generated"
    if not folder.is_dir():
        pytest.skip("no clevr_questions_generated in the folder of public data sets")
    programs = read_programs(folder / "CLEVR_val_questions.json")
    assert len(programs) == 5000
    assert sum(map(len, programs)) == 55_593
    assert {name for each in programs for name in each.functions} == {*FUNCTIONS}
    assert {each.image for each in programs} == {*range(500)}
