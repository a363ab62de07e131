"""Functional programs over images, with the functions and values of CLEVR.

Source: Johnson et al., "CLEVR: A Diagnostic Dataset for Compositional Language and
Elementary Visual Reasoning", CVPR 2017.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edbatch.arguments import is_whole
from edbatch.data.vocabulary import UNKNOWN_INDEX, Vocabulary
from edbatch.errors import DataError, nearest, shown

# Height, width and channels of an image's features.
IMAGE_SHAPE = (7, 7, 16)

RELATIONS = ("behind", "front", "left", "right")
ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "size": ("large", "small"),
    "color": ("blue", "brown", "cyan", "gray", "green", "purple", "red", "yellow"),
    "material": ("metal", "rubber"),
    "shape": ("cube", "cylinder", "sphere"),
}
_MOST_KINDS = 5  # limit for the kinds in an error message
VALUES = (*RELATIONS, *(value for values in ATTRIBUTES.values() for value in values))
ANSWERS = ("no", "yes", *map(str, range(11)), *VALUES[len(RELATIONS) :])


class Signature(NamedTuple):
    """The signature of a function: its argument and result types.

    Attributes:
        inputs: The kinds of its inputs: ``"objects"`` for a set of objects,
            ``"object"``, ``"integer"``, ``"boolean"``, or an attribute.
        output: The kind of its output.
        takes_value: Whether it also takes a value, such as a colour.
    """

    inputs: tuple[str, ...]
    output: str
    takes_value: bool = False


FUNCTIONS: Mapping[str, Signature] = {
    "scene": Signature((), "objects"),
    "unique": Signature(("objects",), "object"),
    "relate": Signature(("object",), "objects", takes_value=True),
    "union": Signature(("objects", "objects"), "objects"),
    "intersect": Signature(("objects", "objects"), "objects"),
    "count": Signature(("objects",), "integer"),
    "exist": Signature(("objects",), "boolean"),
    "equal_integer": Signature(("integer", "integer"), "boolean"),
    "less_than": Signature(("integer", "integer"), "boolean"),
    "greater_than": Signature(("integer", "integer"), "boolean"),
    **{
        f"{name}_{attribute}": signature
        for attribute in ATTRIBUTES
        for name, signature in {
            "filter": Signature(("objects",), "objects", takes_value=True),
            "same": Signature(("object",), "objects"),
            "query": Signature(("object",), attribute),
            "equal": Signature((attribute, attribute), "boolean"),
        }.items()
    },
}


@dataclass(frozen=True)
class Program:
    """A program: functions that read earlier functions' outputs; the last is the root.

    Attributes:
        functions: [N] Names in `FUNCTIONS`. Any iterable is accepted, here and below.
        inputs: [N] The positions of each function's inputs, all before the function.
        values: [N] The value of each function, or its index once a vocabulary is
            applied; None for functions without a value.
        image: The number of the program's image.
        answer: The answer, or its index; None if it is unknown.
        features: `IMAGE_SHAPE` float32, the features of the image; None before
            `index_program`. Ignored in comparisons.

    Raises:
        DataError: There is no function; a function is unknown, has the wrong inputs,
            lacks a value or has one too many; or the image has no valid number.

    Example:
        >>> program = Program(["scene", "count"], [(), (0,)], [None, None])
        >>> len(program), FUNCTIONS[program.functions[-1]].output
        (2, 'integer')
    """

    functions: tuple[str, ...]
    inputs: tuple[tuple[int, ...], ...]
    values: tuple[str | int | None, ...]
    image: int = 0
    answer: str | int | None = None
    features: NDArray[np.float32] | None = field(
        default=None, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "functions", tuple(self.functions))
        object.__setattr__(self, "inputs", tuple(map(tuple, self.inputs)))
        object.__setattr__(self, "values", tuple(self.values))
        lengths = len(self.functions), len(self.inputs), len(self.values)
        if len(set(lengths)) > 1 or not self.functions:
            raise DataError(
                "program: a Program must have one function or more, with as many"
                f" inputs and values; found {', '.join(map(str, lengths))} of them;"
                " usually a part of a program; give () and None where there is no input"
                " or value"
            )
        if not is_whole(self.image) or self.image < 0:
            raise DataError(
                "image_index: the image of a Program must be a number, 0 or more; found"
                f" {shown(self.image)}; usually a mark for an image that is missing;"
                " leave the question out"
            )
        for k in range(len(self.functions)):
            self._check(k)

    def __len__(self) -> int:
        return len(self.functions)

    def _check(self, k: int) -> None:
        name = self.functions[k]
        signature = FUNCTIONS.get(name)
        if signature is None:
            raise DataError(
                f"program[{k}]: a function must be one of the {len(FUNCTIONS)} of"
                f" CLEVR; found {shown(name)}; usually a program for another data set;"
                f" {nearest(str(name), FUNCTIONS)}"
            )
        for each in self.inputs[k]:
            if type(each) is not int or not 0 <= each < k:
                raise DataError(
                    f"program[{k}]: the inputs of a function must be positions before"
                    f" it; found {shown(each)} for {name!r}, which is at {k}; usually a"
                    " program in another order, or with a cycle; sort it, the root last"
                )
        self._check_signature(k, signature)

    def _check_signature(self, k: int, signature: Signature) -> None:
        name = self.functions[k]
        found = tuple(FUNCTIONS[self.functions[each]].output for each in self.inputs[k])
        if found != signature.inputs:
            raise DataError(
                f"program[{k}]: the inputs of {name!r} must be"
                f" {_kinds(signature.inputs)}; found {_kinds(found)}; usually an input"
                " that is missing or leads to another function; fix the inputs"
            )
        if (self.values[k] is not None) != signature.takes_value:
            rule = "a value" if signature.takes_value else "no value"
            raise DataError(
                f"program[{k}]: {name!r} must have {rule}; found"
                f" {shown(self.values[k])}; usually a value at the wrong function; move"
                " or add it"
            )


def _kinds(kinds: Sequence[str]) -> str:
    more = ", ..." if len(kinds) > _MOST_KINDS else ""
    return f"({', '.join(kinds[:_MOST_KINDS])}{more})"


def index_program(program: Program, values: Vocabulary, answers: Vocabulary) -> Program:
    """Replaces a program's values and answer by their indices, and adds features.

    Args:
        program: A program of strings.
        values: The vocabulary of the values.
        answers: The vocabulary of the answers; unknown answers become 0.

    Returns:
        The program of indices. If it has no features, it gets `pseudo_features`.

    Raises:
        DataError: A value or the answer is not a string.

    Example:
        >>> program = Program(["scene", "filter_size"], [(), (0,)], [None, "small"])
        >>> index_program(program, Vocabulary(VALUES), Vocabulary(ANSWERS)).values
        (None, 6)
    """
    return Program(
        program.functions,
        program.inputs,
        tuple(
            None if value is None else values.index(value) for value in program.values
        ),
        program.image,
        UNKNOWN_INDEX if program.answer is None else answers.index(program.answer),
        pseudo_features(program.image)
        if program.features is None
        else program.features,
    )


@lru_cache(maxsize=16_384)
def pseudo_features(image: int) -> NDArray[np.float32]:
    """Returns random features for an image, the same in every call.

    They carry no information: use them to measure speed and batching, not accuracy.

    Args:
        image: The number of the image, 0 or more, used as the seed.

    Returns:
        `IMAGE_SHAPE` float32, read-only, of unit variance.

    Example:
        >>> pseudo_features(3).shape
        (7, 7, 16)
    """
    rng = np.random.default_rng(image)
    features = rng.standard_normal(IMAGE_SHAPE, np.float32)
    features.setflags(write=False)  # shared by all programs about the image
    return features
