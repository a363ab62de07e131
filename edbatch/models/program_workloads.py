"""The workload over functional programs."""

from collections.abc import Iterable
from functools import partial

import numpy as np

from edbatch.data import (
    Program,
    Vocabulary,
    index_program,
    read_programs,
    sample_programs,
)
from edbatch.data.programs import ANSWERS, VALUES
from edbatch.data.vocabulary import UNKNOWN
from edbatch.models import module_network
from edbatch.models.workload import Workload


def neural_module_network_workload(
    vocabulary_size: int = 1 + len(VALUES), num_answers: int = 1 + len(ANSWERS)
) -> Workload:
    """Builds ``"neural-module-network"``; options as for `get_workload`."""
    answers = Vocabulary(ANSWERS, max_size=num_answers)

    def number(programs: list[Program], values: Vocabulary) -> list[Program]:
        return [index_program(each, values, answers) for each in programs]

    def sample(rng: np.random.Generator, count: int) -> list[Program]:
        values = Vocabulary(VALUES, max_size=vocabulary_size)
        return number(sample_programs(rng, count), values)

    return Workload(
        name="neural-module-network",
        description=(
            "A neural module network (Johnson et al. 2017) over the functional programs"
            " of CLEVR's questions, with a module per function."
        ),
        vocabulary_size=vocabulary_size,
        model=module_network.answer,
        init_params=partial(
            module_network.init_params,
            vocabulary_size=vocabulary_size,
            num_answers=num_answers,
        ),
        read_text=read_programs,
        words=_values,
        number=number,
        sample=sample,
    )


def _values(program: Program) -> Iterable[str | int]:
    # A vocabulary needs a word, even where no program of a file has a value.
    return [value for value in program.values if value is not None] or [UNKNOWN]
