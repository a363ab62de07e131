"""A neural module network over functional programs: one small network per function.

Source: Johnson et al., "Inferring and Executing Programs for Visual Reasoning", ICCV
2017, section 3.2: a question's program says how to assemble modules, each of which maps
feature maps to a feature map. Four simplifications keep the model small: maps are 7 by
7; the first of a module's two convolutions is 1 by 1; there is one module per function,
not one per function and value, and the value's vector is added between the
convolutions; the answer is computed from the mean over the last map.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.nn import relu

import edbatch as eb
from edbatch.data import (
    Program,
    Vocabulary,
    index_program,
    read_programs,
    sample_programs,
)
from edbatch.data.programs import ANSWERS, FUNCTIONS, IMAGE_SHAPE, VALUES
from edbatch.models.shared.initial_params import affine, embedding
from edbatch.models.shared.workload import Workload

_SIDE = 3  # side of a convolution's window


@eb.cell
def scene(params: Any, image: Any) -> Array:
    """Returns the feature map ``[7, 7, H]`` of an image from its features."""
    return relu(_convolved(params["scene"], image))


def _module(name: str) -> eb.Cell:
    """Makes the cell of the function called ``name``."""
    if len(FUNCTIONS[name].inputs) == 2:

        @eb.cell(name=name)
        def binary(params: Any, one: Array, two: Array) -> Array:
            module = params[name]
            x = relu(_mixed(module, jnp.concatenate([one, two], axis=-1)))
            return relu(x + _convolved(module["convolve"], x))

        return binary
    if FUNCTIONS[name].takes_value:

        @eb.cell(name=name)
        def with_value(params: Any, x: Array, value: Array) -> Array:
            module = params[name]
            vector = params["embedding"][value][None, None]
            between = relu(_mixed(module, x) + vector)
            return relu(x + _convolved(module["convolve"], between))

        return with_value

    @eb.cell(name=name)
    def unary(params: Any, x: Array) -> Array:
        module = params[name]
        return relu(x + _convolved(module["convolve"], relu(_mixed(module, x))))

    return unary


MODULES = {name: _module(name) for name in FUNCTIONS if name != "scene"}


@eb.cell
def classify(params: Any, x: Array) -> Array:
    """Returns the logits of the answer, ``[A]``."""
    mean = jnp.mean(x, axis=(0, 1))
    return mean @ params["classify"]["W"] + params["classify"]["b"]


def _mixed(module: Any, x: Array) -> Array:
    """Applies the 1 by 1 convolution of a module."""
    return x @ module["mix"]["W"] + module["mix"]["b"][None, None]


def _convolved(layer: Any, x: Array) -> Array:
    """Applies a 3 by 3 convolution with zero padding, as one product."""
    height, width, _ = x.shape
    around = jnp.pad(x, ((1, 1), (1, 1), (0, 0)))
    windows = [
        around[i : i + height, j : j + width]
        for i in range(_SIDE)
        for j in range(_SIDE)
    ]
    return jnp.concatenate(windows, axis=-1) @ layer["W"] + layer["b"][None, None]


def answer(params: Any, program: Program) -> Any:
    """Answers a question given as a program.

    Args:
        params: Parameters, as returned by `init_params`.
        program: A program of value indices, with the features of its image; its answer
            is not read.

    Returns:
        Logits ``[A]``.

    Example:
        >>> from edbatch.data import Program
        >>> from edbatch.data.programs import pseudo_features
        >>> program = Program(
        ...     ["scene", "filter_size", "count"],
        ...     [(), (0,), (1,)],
        ...     [None, 2, None],
        ...     features=pseudo_features(0),
        ... )
        >>> params = init_params(jax.random.key(0), hidden=4, vocabulary_size=9)
        >>> answer(params, program).shape
        (29,)
    """
    image = scene(params, program.features)  # shared by all "scene" functions
    maps: list[Any] = []
    for name, inputs, value in zip(
        program.functions, program.inputs, program.values, strict=True
    ):
        if name == "scene":
            maps.append(image)
            continue
        arguments = [maps[k] for k in inputs]
        if value is not None:
            arguments.append(value)
        maps.append(MODULES[name](params, *arguments))
    return classify(params, maps[-1])


def init_params(
    key: Array,
    hidden: int,
    vocabulary_size: int,
    *,
    num_answers: int = 1 + len(ANSWERS),
) -> dict[str, Any]:
    """Samples parameters.

    Args:
        key: A `jax.random` key.
        hidden: Number of channels of the maps, H.
        vocabulary_size: Number of values.
        num_answers: Number of answers, A; by default the 28 answers of CLEVR and the
            unknown one.

    Returns:
        Nested dicts of float32 arrays.
    """
    values, output, image, *modules = jax.random.split(key, 3 + len(MODULES))
    params: dict[str, Any] = {
        "embedding": embedding(values, vocabulary_size, hidden),
        "scene": affine(image, _SIDE**2 * IMAGE_SHAPE[-1], hidden),
        "classify": affine(output, hidden, num_answers),
    }
    for name, each in zip(MODULES, modules, strict=True):
        mix, convolve = jax.random.split(each)
        params[name] = {
            "mix": affine(mix, len(FUNCTIONS[name].inputs) * hidden, hidden),
            "convolve": affine(convolve, _SIDE**2 * hidden, hidden),
        }
    return params


def workload(
    vocabulary_size: int = 1 + len(VALUES), num_answers: int = 1 + len(ANSWERS)
) -> Workload:
    """Builds ``"neural-module-network"``.

    Args:
        vocabulary_size: Number of values of functions, the unknown one included.
        num_answers: Number of answers of the classifier, the unknown one included.

    Returns:
        The workload.
    """
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
        reads="questions of CLEVR",
        vocabulary_size=vocabulary_size,
        model=answer,
        init_params=partial(
            init_params, vocabulary_size=vocabulary_size, num_answers=num_answers
        ),
        read_text=read_programs,
        words=_values,
        number=number,
        sample=sample,
        zoo_data=("clevr_questions_generated/CLEVR_train_questions_0.json",),
    )


def _values(program: Program) -> Iterable[str | int]:
    return [value for value in program.values if value is not None]
