"""Random models under random configurations, against the models themselves.

``pytest -m slow tests/fuzz --programs 2000 --fuzz-seed 7`` runs many; what fails says
how to run it alone. ``--fuzz-without while,isolation`` leaves operations (see
`fuzz_models.OPERATIONS`) or the poisoned runs out.
"""

import warnings
from collections.abc import Iterator

import jax
import pytest
from fuzz_checks import Case, check, sample_case, shrink
from memory_regions import drop_programs_if_many


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "number" in metafunc.fixturenames:
        option = metafunc.config.getoption
        first, count = option("--fuzz-first"), option("--programs")
        metafunc.parametrize("number", range(first, first + count))


@pytest.fixture(autouse=True)
def few_programs_each() -> Iterator[None]:
    yield
    drop_programs_if_many()


def error_of(case: Case) -> Exception | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check(case)
    except Exception as error:
        return error
    return None


@pytest.mark.slow
def test_a_random_program(
    number: int, request: pytest.FixtureRequest, quick_compiles: None
) -> None:
    option = request.config.getoption
    seed, names = option("--fuzz-seed"), option("--fuzz-without")
    without = frozenset(names.split(",")) - {""}
    case = sample_case(seed, number, without)
    with jax.numpy_rank_promotion("raise"):
        error = error_of(case)
    if error is None:
        return
    simple, left = shrink(case, error, error_of, option("--fuzz-shrink"))
    again = f"--fuzz-seed {seed} --fuzz-first {number} --programs 1"
    if names:
        again += f" --fuzz-without {names}"
    raise AssertionError(
        f"program {number} of seed {seed} fails; again by\n"
        f"  pytest -m slow tests/fuzz {again}\n"
        f"{type(left).__name__}: {left}\n{simple}"
    ) from left
