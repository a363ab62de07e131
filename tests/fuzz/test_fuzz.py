"""Random models, batched under random configurations, against the unbatched models.

``pytest -m slow tests/fuzz --programs 2000 --fuzz-seed 7`` runs many; a failure says
how to rerun it alone. ``--fuzz-without while,isolation`` leaves out operations (see
`fuzz_models.OPERATIONS`) or the poisoned runs.
"""

import warnings
from collections.abc import Iterator
from contextlib import nullcontext

import fuzz_models
import jax
import numpy as np
import pytest
from fuzz_cases import Case, Configuration, sample_case
from fuzz_checks import Batch, Mismatch, Numbers, check, shrink
from fuzz_models import OPERATIONS, Instance, Program, Step
from memory_regions import drop_programs_if_many

import edbatch as eb

WITHOUT = frozenset({"while"})


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


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_is_a_program(operation: str) -> None:
    steps = (Step(operation, (1, -1)), Step("leaf", (2, 3)))
    inputs = tuple(
        fuzz_models.sample_input(np.random.default_rng(0), each.operation)
        for each in steps
    )
    program = Program(0, (operation, "leaf"), "all", (Instance(steps, inputs),), 0)
    model = fuzz_models.make_model(program)
    with nullcontext() if not program.draws else eb.cell_keys(jax.random.key(0), 0):
        found = model(fuzz_models.make_params(program), program.instances[0])
    assert all(np.isfinite(each).all() for each in found)


def test_a_case_follows_from_its_number() -> None:
    one, same, other = (str(sample_case(3, k)) for k in (4, 4, 5))
    assert one == same != other
    drawn = [sample_case(3, k, WITHOUT).program for k in range(50)]
    assert not any("while" in each.operations for each in drawn)


def test_a_leak_is_found(monkeypatch: pytest.MonkeyPatch, quick_compiles: None) -> None:
    """Leaks one instance's input gradient into the others."""
    steps = (Step("leaf", (0, 0)),)
    instances = tuple(Instance(steps, (np.float32([k + 0.5, 1, 2]),)) for k in range(3))
    program = Program(0, ("leaf",), "last", instances, 1)
    case = Case(program, Configuration(widths=(4,)), ("nan",))
    assert error_of(case) is None
    run = Batch.run

    def leak(self: Batch, params: object, plan: eb.Plan) -> Numbers:
        found = run(self, params, plan)
        for place in found.inputs:
            found.inputs[place] = found.inputs[place] + 1e-6 * found.inputs[1, 0]
        return found

    monkeypatch.setattr(Batch, "run", leak)
    assert isinstance(error_of(case), Mismatch)


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
