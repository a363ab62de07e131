import numpy as np
import pytest

from edbatch.data import DataError, Program, Vocabulary, index_program
from edbatch.data.programs import (
    ANSWERS,
    FUNCTIONS,
    IMAGE_SHAPE,
    VALUES,
    pseudo_features,
)

CHAIN = Program(
    ["scene", "filter_color", "unique", "query_shape"],
    [[], [0], [1], [2]],
    [None, "red", None, None],
    image=7,
    answer="cube",
)


def test_clevr_has_26_functions_19_values_and_28_answers() -> None:
    assert len(FUNCTIONS) == 26
    assert len(set(VALUES)) == 19 and len(set(ANSWERS)) == 28
    kinds = {signature.output for signature in FUNCTIONS.values()}
    for signature in FUNCTIONS.values():
        assert kinds.issuperset(signature.inputs)


def test_any_sequences_become_tuples_and_features_are_not_compared() -> None:
    assert CHAIN.inputs == ((), (0,), (1,), (2,)) and len(CHAIN) == 4
    indexed = index_program(CHAIN, Vocabulary(VALUES), Vocabulary(ANSWERS))
    without = Program(indexed.functions, indexed.inputs, indexed.values, 7, 26)
    assert indexed == without and without.features is None
    assert indexed.features is not None and indexed.features.shape == IMAGE_SHAPE
    assert hash(indexed) == hash(without)


def test_values_and_answers_are_numbered() -> None:
    indexed = index_program(CHAIN, Vocabulary(["blue", "red"]), Vocabulary(["no"]))
    assert indexed.values == (None, 2, None, None)
    assert indexed.answer == 0
    unanswered = Program(["scene", "count"], [(), (0,)], [None, None])
    answers = Vocabulary(["no"])
    assert index_program(unanswered, Vocabulary(["red"]), answers).answer == 0


def test_given_features_are_kept() -> None:
    features = np.ones(IMAGE_SHAPE, np.float32)
    program = Program(["scene", "count"], [(), (0,)], [None, None], features=features)
    indexed = index_program(program, Vocabulary(["red"]), Vocabulary(["no"]))
    assert indexed.features is features


def test_pseudo_features_depend_on_the_image_alone() -> None:
    first = pseudo_features(3)
    pseudo_features.cache_clear()
    assert np.array_equal(first, pseudo_features(3))
    assert not np.array_equal(first, pseudo_features(4))
    assert first.dtype == np.float32 and abs(first.std() - 1) < 0.1
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 0


@pytest.mark.parametrize(
    ("functions", "inputs", "values", "message"),
    [
        ([], [], [], "one function or more, .*; found 0, 0, 0 of them; usually a part"),
        (["scene"], [()], [], "as many inputs and values; found 1, 1, 0 of them"),
        (
            ["scene", "filter_colour"],
            [(), (0,)],
            [None, "red"],
            r"program\[1\]: a function must be one of the 26 of CLEVR; found"
            r" 'filter_colour'; usually .*; did you mean 'filter_color'\?",
        ),
        (
            ["count", "scene"],
            [(1,), ()],
            [None, None],
            r"program\[0\]: the inputs .* positions before it; found 1 for 'count',"
            " which is at 0; usually .* sort it, the root last",
        ),
        (["scene", "count"], [(), (1,)], [None, None], "found 1 for 'count', which is"),
        (["scene", "count"], [(), (-1,)], [None, None], "found -1 for 'count'"),
        (["scene", "count"], [(), (True,)], [None, None], "found True for 'count'"),
        (["scene", "count"], [(), ("0",)], [None, None], "found '0' for 'count'"),
        (
            ["scene", "count"],
            [(), ()],
            [None, None],
            r"program\[1\]: the inputs of 'count' must be \(objects\); found \(\);",
        ),
        (
            ["scene", "count", "equal_integer"],
            [(), (0,), (1, 0)],
            [None] * 3,
            r"must be \(integer, integer\); found \(integer, objects\); usually an inp",
        ),
        (
            ["scene", "filter_size"],
            [(), (0,)],
            [None, None],
            r"program\[1\]: 'filter_size' must have a value; found None; usually",
        ),
        (["scene"], [()], ["red"], "'scene' must have no value; found 'red'; usually"),
    ],
)
def test_malformed_programs(functions, inputs, values, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Program(functions, inputs, values)
