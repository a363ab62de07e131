"""Malformed files of every format raise a `DataError` of bounded length."""

import gzip
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from edbatch.data import (
    DataError,
    WordList,
    read_character_lattices,
    read_columns,
    read_dependency_trees,
    read_plf,
    read_programs,
    read_sentence_pairs,
    read_sentences,
    read_trees,
    read_word_list,
)
from edbatch.limits import MAX_NESTING
from edbatch.models import get_workload

MOST = 300
LONG = "a " * 10**6
WORD = "a" * 10**6
DIGITS = "9" * 4400


def conllu(**fields: str) -> str:
    names = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel")
    values = dict.fromkeys(names, "x") | {"id": "1", "head": "0"} | fields
    return "\t".join([*values.values(), "_", "_"]) + "\n\n"


def question(**entries: Any) -> str:
    scene = {"function": "scene", "inputs": [], "value_inputs": []}
    whole = {"image_index": 1, "program": [scene], "answer": "yes"} | entries
    return json.dumps({"questions": [whole]})


def program(*nodes: dict[str, Any]) -> str:
    return question(program=nodes)


read_lattice = partial(read_character_lattices, words=WordList(["ab"]))
read_binary = get_workload("tree-lstm").read
read_narrow = get_workload("tree-lstm", arity=3).read

WRONG: list[tuple[Callable[[Path], Any], str]] = [
    (read_trees, LONG),
    (read_trees, WORD),
    (read_trees, f"({WORD})"),
    (read_trees, f"({WORD} ())"),
    (read_trees, "(" * 10**6),
    (read_trees, ")" * 10**6),
    (read_narrow, f"(S{' (NN dog)' * 10**5})"),
    (read_narrow, f"({WORD} (A b) (A b) (A b) (A b))"),
    (read_sentences, LONG),
    (read_sentences, conllu(id=WORD)),
    (read_sentences, conllu(id=DIGITS)),
    (read_sentences, "\t" * 10**6),
    (read_dependency_trees, conllu(head=WORD)),
    (read_dependency_trees, conllu(head=DIGITS)),
    (read_dependency_trees, conllu(head="9" * 18)),
    (read_dependency_trees, conllu(head="\u0663")),
    (read_columns, WORD),
    (read_columns, f"a b\n{LONG}"),
    (read_columns, f"a b\nc\td\t{WORD}"),
    (read_lattice, f"ab {LONG}"),
    (read_lattice, f"{WORD} O"),
    (read_word_list, f"{LONG} b"),
    (read_word_list, f"ab 3 n\n{LONG}"),
    (read_word_list, WORD),
    (read_sentence_pairs, LONG),
    (read_sentence_pairs, f"{WORD}\t"),
    (read_plf, LONG),
    (read_plf, f"'{WORD}'"),
    (read_plf, "(" * 10**6),
    (read_plf, "-" * 10**6 + "1"),
    (read_plf, "1+" * 10**5 + "1"),
    (read_plf, f"(((1, 2, '{WORD}'),),)"),
    (read_plf, f"((('{WORD}', 1, -1),),)"),
    (read_plf, f"((('a', {DIGITS}, 1),),)"),
    (read_plf, f"((('a', {10**400}, 1),),)"),
    (read_plf, "((('a', 1e999, 1),),)"),
    (read_plf, f"((('a', 1, {10**400}),),)"),
    (read_plf, "{" * 150 + "}" * 150),
    (read_programs, '{"questions":' + "[" * 100_000),
    (read_programs, "[" * 900 + "]" * 900),
    (read_programs, f'{{"questions": [{{"image_index": {DIGITS}}}]}}'),
    (read_programs, json.dumps({f"{k}{WORD}": k for k in range(3)})),
    (read_programs, json.dumps(dict.fromkeys(map(str, range(10**5))))),
    (read_programs, json.dumps({"questions": [{WORD: 1}]})),
    (read_programs, question(program=[WORD])),
    (read_programs, question(image_index=WORD)),
    (read_programs, question(image_index=-1)),
    (read_programs, question(image_index=True)),
    (read_programs, program({"function": WORD, "inputs": []})),
    (read_programs, program({"function": [[WORD] * 9] * 9, "inputs": []})),
    (read_programs, program({"function": "scene", "inputs": [WORD]})),
    (read_programs, program({"function": "scene", "inputs": WORD})),
    (read_programs, program({"function": "scene", "inputs": [0.5]})),
    (read_programs, program({"function": "scene", "inputs": [[[]]]})),
    (
        read_programs,
        program(
            {"function": "scene", "inputs": []},
            {"function": "count", "inputs": [0] * 10**5},
        ),
    ),
    (
        read_programs,
        program({"function": "scene", "inputs": [], "value_inputs": [WORD]}),
    ),
    (
        read_programs,
        program({"function": "scene", "inputs": [], "value_inputs": [[WORD]] * 99}),
    ),
    (
        read_programs,
        program({"function": "scene", "inputs": [], "value_inputs": {WORD: WORD}}),
    ),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_messages_are_short(tmp_path: Path, number: int) -> None:
    read, text = WRONG[number]
    file = tmp_path / "wrong"
    file.write_text(text)
    with pytest.raises(DataError) as caught:
        read(file)
    message = str(caught.value)
    assert len(message.removeprefix(str(file))) <= MOST
    for suffix in (".ptb", ".conllu", ".conll", ".dict", ".tsv", ".plf", ".json"):
        (tmp_path / f"b{suffix}").write_text(text)
    file.unlink()
    with pytest.raises(DataError) as caught:
        read(tmp_path)
    assert len(re.sub(rf"{re.escape(str(tmp_path))}\S*", "", str(caught.value))) <= MOST


def test_nesting_has_a_limit(tmp_path: Path) -> None:
    def nested(depth: int) -> str:
        return "(S " * (depth - 1) + "(A a)" + ")" * (depth - 1)

    file = tmp_path / "a.ptb"
    file.write_text(nested(MAX_NESTING))
    [tree] = read_trees(file)
    assert tree.height() == MAX_NESTING - 1
    file.write_text("\n" + nested(MAX_NESTING + 2))
    with pytest.raises(
        DataError,
        match=rf"a.ptb, line 2, column {1 + 3 * MAX_NESTING}: trees must be nested at "
        "most 250,000 deep; found more .* open here; usually .* fix the brackets",
    ):
        read_trees(file)


READERS = list(dict.fromkeys(read for read, _ in WRONG))


@pytest.mark.parametrize("read", READERS, ids=range(len(READERS)))
def test_gzip_that_unpacks_to_too_much(tmp_path: Path, read: Any) -> None:
    file = tmp_path / "a"
    file.write_bytes(gzip.compress(b"(" * 10**7))
    with pytest.raises(
        DataError,
        match=r"found that its 9,7\d\d bytes of gzip unpack to more than 1,048,576, "
        "which text does not; unpack it first if it is what you want to read",
    ) as caught:
        read(file)
    assert len(str(caught.value).removeprefix(str(file))) <= MOST
