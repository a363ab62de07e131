"""Sampler of functional programs like those of CLEVR's questions.

Every program follows one of the nine template families of CLEVR's questions. The
frequency of each family and the number of filters after each function were counted in
5,000 questions that CLEVR's generator wrote for 500 of its scenes:

    functions     mean   median   95 %   max    depth: mean   median   95 %
    generated     11.1       10     19    24            9.0        9     15
    sampled       11.0       10     18    23            9.0        9     15
"""

from collections.abc import Callable, Sequence

import numpy as np

from edbatch.data.programs import ANSWERS, ATTRIBUTES, FUNCTIONS, RELATIONS, Program
from edbatch.data.zipf import check_request

# Shares of 0, 1, 2, ... filters after each function.
_FILTERS = {
    "scene": (0.02, 0.13, 0.44, 0.34, 0.07),
    "relate": (0.05, 0.38, 0.41, 0.14, 0.02),
    "same": (0.35, 0.29, 0.29, 0.07),
    "intersect": (0.37, 0.50, 0.13),
    "union": (0.50, 0.50),
}
_NUM_IMAGES = 500


def sample_programs(rng: np.random.Generator, count: int) -> list[Program]:
    """Samples well-typed programs, about images 0 to 499.

    Args:
        rng: The random generator.
        count: Number of programs.

    Returns:
        The programs, with values and answers as strings. Answers are random values of
        the right kind.

    Raises:
        DataError: `rng` is not a generator, or the count is negative.

    Example:
        >>> [program] = sample_programs(np.random.default_rng(3), 1)
        >>> len(program), program.functions[0], program.functions[-1]
        (9, 'scene', 'query_color')
    """
    check_request(rng, count=(count, 0))
    shares = np.array([share for share, _ in _FAMILIES], float)
    families = rng.choice(len(_FAMILIES), count, p=shares / shares.sum())
    return [_sample(rng, _FAMILIES[family][1]) for family in families.tolist()]


class _Writer:
    """Writes one program function by function; functions are identified by position."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.functions: list[str] = []
        self.inputs: list[tuple[int, ...]] = []
        self.values: list[str | None] = []

    def add(self, function: str, *inputs: int, value: str | None = None) -> int:
        self.functions.append(function)
        self.inputs.append(inputs)
        self.values.append(value)
        return len(self.functions) - 1

    def pick(self, names: Sequence[str]) -> str:
        return names[int(self.rng.integers(len(names)))]

    def filtered(self, objects: int, after: str) -> int:
        shares = np.array(_FILTERS[after])
        number = int(self.rng.choice(len(shares), p=shares))
        chosen = self.rng.permutation(len(ATTRIBUTES))[:number]
        for k, (attribute, values) in enumerate(ATTRIBUTES.items()):
            if k in chosen:
                value = self.pick(values)
                objects = self.add(f"filter_{attribute}", objects, value=value)
        return objects

    def relate(self, objects: int) -> int:
        one = self.add("unique", objects)
        return self.add("relate", one, value=self.pick(RELATIONS))

    def chain(self, hops: int) -> int:
        """Adds filtered objects of the scene, then ``hops`` filtered relations."""
        objects = self.filtered(self.add("scene"), "scene")
        for _ in range(hops):
            objects = self.filtered(self.relate(objects), "relate")
        return objects

    def query(self, objects: int, attribute: str | None = None) -> int:
        attribute = attribute or self.pick(tuple(ATTRIBUTES))
        return self.add(f"query_{attribute}", self.add("unique", objects))

    def ask(self, objects: int, query: float, exist: float) -> None:
        """Ends the program with a query, an existence test or a count."""
        drawn = self.rng.random()
        if drawn < query:
            self.query(objects)
        else:
            self.add("exist" if drawn < query + exist else "count", objects)


def _hops(number: int) -> Callable[[_Writer], None]:
    return lambda writer: writer.ask(writer.chain(number), 0.66, 0.17)


def _same(writer: _Writer) -> None:
    one = writer.add("unique", writer.chain(0))
    alike = writer.add(f"same_{writer.pick(tuple(ATTRIBUTES))}", one)
    writer.ask(writer.filtered(alike, "same"), 0.43, 0.29)


def _and(writer: _Writer) -> None:
    sides = [writer.relate(writer.chain(0)) for _ in range(2)]
    both = writer.add("intersect", *sides)
    writer.ask(writer.filtered(both, "intersect"), 0.8, 0.0)


def _or(writer: _Writer) -> None:
    sides = [writer.chain(int(writer.rng.random() < 0.3)) for _ in range(2)]
    either = writer.add("union", *sides)
    writer.add("count", writer.filtered(either, "union"))


def _compare_attributes(writer: _Writer) -> None:
    attribute = writer.pick(tuple(ATTRIBUTES))
    sides = [
        writer.query(writer.chain(int(writer.rng.integers(2))), attribute)
        for _ in range(2)
    ]
    writer.add(f"equal_{attribute}", *sides)


def _compare_counts(writer: _Writer) -> None:
    sides = [
        writer.add("count", writer.chain(int(writer.rng.integers(2)))) for _ in range(2)
    ]
    writer.add(writer.pick(("equal_integer", "less_than", "greater_than")), *sides)


# The template families, each with its number of questions.
_FAMILIES: tuple[tuple[int, Callable[[_Writer], None]], ...] = (
    (336, _hops(0)),
    (336, _hops(1)),
    (337, _hops(2)),
    (342, _hops(3)),
    (1578, _same),
    (277, _and),
    (448, _or),
    (896, _compare_attributes),
    (450, _compare_counts),
)


def _sample(rng: np.random.Generator, write: Callable[[_Writer], None]) -> Program:
    writer = _Writer(rng)
    write(writer)
    answers = _ANSWERS_OF[FUNCTIONS[writer.functions[-1]].output]
    return Program(
        tuple(writer.functions),
        tuple(writer.inputs),
        tuple(writer.values),
        int(rng.integers(_NUM_IMAGES)),
        writer.pick(answers),
    )


_ANSWERS_OF = {
    "boolean": ANSWERS[:2],
    "integer": ANSWERS[2:13],
    **ATTRIBUTES,
}
