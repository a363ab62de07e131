from pathlib import Path

import numpy as np
import pytest

from edbatch.data import DataError, Program, read_programs, sample_programs
from edbatch.data.programs import ANSWERS, ATTRIBUTES, FUNCTIONS, VALUES


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def depth(program: Program) -> int:
    depths: list[int] = []
    for inputs in program.inputs:
        depths.append(1 + max((depths[k] for k in inputs), default=0))
    return depths[-1]


def test_one_seed_gives_one_sample() -> None:
    assert sample_programs(generator(1), 5) == sample_programs(generator(1), 5)
    assert sample_programs(generator(1), 5) != sample_programs(generator(2), 5)
    assert sample_programs(generator(1), 0) == []


def test_every_function_and_value_occurs() -> None:
    programs = sample_programs(generator(), 3000)
    assert {name for each in programs for name in each.functions} == {*FUNCTIONS}
    values = {value for each in programs for value in each.values} - {None}
    assert values == {*VALUES}
    assert {each.answer for each in programs} == {*ANSWERS}


def test_programs_are_trees_whose_root_is_last() -> None:
    for program in sample_programs(generator(), 300):
        used = [k for inputs in program.inputs for k in inputs]
        assert sorted(used) == [*range(len(program) - 1)]


def test_answers_are_of_the_right_kind() -> None:
    for program in sample_programs(generator(), 300):
        kind = FUNCTIONS[program.functions[-1]].output
        expected = ATTRIBUTES.get(kind, ANSWERS[:2] if kind == "boolean" else None)
        if expected is None:
            assert kind == "integer" and str(program.answer).isdigit()
        else:
            assert program.answer in expected


def test_filters_take_values_of_their_attribute() -> None:
    for program in sample_programs(generator(), 300):
        for name, value in zip(program.functions, program.values, strict=True):
            verb, _, attribute = name.partition("_")
            assert verb != "filter" or value in ATTRIBUTES[attribute]


def test_programs_resemble_generated_ones(shared_data: Path) -> None:
    folder = shared_data / "clevr_questions_generated"
    if not folder.is_dir():
        pytest.skip("no clevr_questions_generated in the folder of public data sets")
    real = read_programs(folder / "CLEVR_val_questions.json")
    sampled = sample_programs(generator(), len(real))
    for measure, close in ((len, 0.3), (depth, 0.3)):
        means = [np.mean([measure(each) for each in some]) for some in (real, sampled)]
        assert abs(means[0] - means[1]) < close
    shares = []
    for programs in (real, sampled):
        names = [name for each in programs for name in each.functions]
        shares.append({name: names.count(name) / len(names) for name in FUNCTIONS})
    assert all(abs(shares[0][name] - shares[1][name]) < 0.02 for name in FUNCTIONS)


@pytest.mark.parametrize(
    ("rng", "count", "message"),
    [
        (3, 1, r"rng must be a numpy\.random\.Generator; found 3, a int; usually a s"),
        (generator(), -1, "count must be 0 or more; found -1; usually"),
    ],
)
def test_requests_that_cannot_be_met(rng, count: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        sample_programs(rng, count)
