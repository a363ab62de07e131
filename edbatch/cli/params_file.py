"""Reads and writes parameters of workloads as `.npz` files of arrays by dotted path."""

import os
import warnings
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import numpy as np

from edbatch.cli.one_sentence import CommandError
from edbatch.data import LabelledVocabulary, PairVocabulary, Vocabulary
from edbatch.errors import WorkloadError, nearest, shown
from edbatch.limits import check_archive
from edbatch.models.shared.workload import Vocabularies, Workload
from edbatch.policies.files.whole_file import write_whole

VOCABULARY, TARGET_VOCABULARY = "vocabulary", "target_vocabulary"
_LABELS = "label_vocabulary."  # prefix of the kind of label


def save_params(path: Path, params: Any, vocabulary: Vocabularies | None) -> None:
    """Writes parameters, and the vocabulary of words and labels if there is one."""
    arrays = {name: np.asarray(leaf) for name, leaf in named(params)}
    if isinstance(vocabulary, PairVocabulary):
        arrays[TARGET_VOCABULARY] = np.array(vocabulary.target.tokens)
        vocabulary = vocabulary.source
    if isinstance(vocabulary, LabelledVocabulary):
        for kind, labels in vocabulary.labels.items():
            arrays[_LABELS + kind] = np.array(labels.tokens)
        vocabulary = vocabulary.words
    if vocabulary is not None:
        arrays[VOCABULARY] = np.array(vocabulary.tokens)
    save_arrays(path, arrays)


def save_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes named arrays to an `.npz` file, all or nothing."""

    def write(temporary: Path) -> None:
        with open(temporary, "wb") as file:  # np.savez would append a suffix to a path
            np.savez(file, **arrays)  # type: ignore[arg-type]

    write_whole(path, write)


def read_arrays(path: Path) -> tuple[dict[str, np.ndarray], Vocabularies | None]:
    """Reads a file written by `save_params`.

    Returns:
        Arrays by dotted path, and the vocabulary if there is one.

    Raises:
        CommandError: There is no such file, it is not an `.npz` file of plain arrays,
            or its unpacked size exceeds the limit.
    """
    wrong = (
        "--params takes an .npz file of arrays, as edbatch run --save-params writes it,"
        f" but {path}"
    )
    if not os.path.exists(path):
        raise CommandError(f"{wrong} does not exist; check the name")
    if not path.is_file():
        raise CommandError(f"{wrong} is no regular file; check the name")
    if not zipfile.is_zipfile(path):  # which an .npz file is
        raise CommandError(f"{wrong} is another kind of file, or cut short")
    try:
        check_archive(path)
        with np.load(path, allow_pickle=False) as content:
            arrays = {name: np.asarray(content[name]) for name in content.files}
    except Exception as error:  # a damaged archive may raise any class
        text = (str(error).splitlines() or [type(error).__name__])[0]
        raise CommandError(f"{wrong} cannot be read: {text[:200]}") from error
    found = {}
    for name in [*arrays]:
        if name in (VOCABULARY, TARGET_VOCABULARY) or name.startswith(_LABELS):
            tokens = arrays.pop(name)
            if tokens.dtype.kind != "U" or tokens.ndim != 1:
                raise CommandError(
                    f"{wrong} has {tokens.dtype}{list(tokens.shape)} as {name!r}"
                    " instead of a list of words; save the parameters again"
                )
            found[name] = _vocabulary(tokens.tolist(), name, wrong)
    words, target = found.pop(VOCABULARY, None), found.pop(TARGET_VOCABULARY, None)
    if words is None:
        return arrays, None
    if target is not None:
        return arrays, PairVocabulary(words, target)
    if not found:
        return arrays, words
    labels = {name.removeprefix(_LABELS): each for name, each in found.items()}
    return arrays, LabelledVocabulary(words, labels)


def _vocabulary(tokens: list[str], name: str, wrong: str) -> Vocabulary:
    """Numbers words by their order; rejects duplicates."""
    if len(set(tokens)) < len(tokens):
        twice, _ = Counter(tokens).most_common(1)[0]
        raise CommandError(
            f"{wrong} has {shown(twice)} twice in {name!r}, which numbers each word"
            " once; save the parameters again"
        )
    return Vocabulary(tokens)


def check_vocabulary(
    workload: Workload, vocabulary: Vocabularies | None, source: Path
) -> None:
    """Checks that a vocabulary covers the words and labels of a workload's instances.

    Raises:
        CommandError: The vocabulary lacks, for example, labels.
    """
    if vocabulary is None:
        return
    try:
        workload.check_vocabulary(vocabulary)
    except WorkloadError as error:
        kinds = " and ".join(["words", *(each.name for each in workload.labels)])
        raise CommandError(
            f"{source} does not number the {kinds} as {workload.name!r} needs them;"
            " usually it was saved by an older version or for another workload; save"
            " the parameters again, with the data that they were trained on"
        ) from error


def fill(
    template: Any,
    arrays: dict[str, np.ndarray],
    source: Path,
    fix: str = (
        "give the options, such as --arity, that the parameters were made for; --hidden"
        " is read from the file"
    ),
) -> Any:
    """Arranges arrays in the structure of parameters.

    Args:
        template: Shapes and dtypes of the parameters.
        arrays: Arrays by dotted path.
        source: The file of the arrays, for messages.
        fix: How to fix an array of a wrong shape, for messages.

    Returns:
        The parameters.

    Raises:
        CommandError: An array is missing, unknown, of a wrong shape, not numeric, or
            cannot be converted to the dtype of its parameter.
    """
    expected = dict(named(template))
    for name in arrays:
        if name not in expected:
            raise CommandError(
                f"{source} has an array {shown(name)} that the model does not have;"
                f" {nearest(name, expected)}"
            )
    for name, leaf in expected.items():
        if name not in arrays:
            raise CommandError(
                f"{source} has no array {name!r}, which the model needs; it has"
                f" {shown([*arrays])[1:-1] or 'none'}"
            )
        if not _is_number(arrays[name].dtype):
            raise _other_dtype(source, name, arrays[name], leaf)
        if arrays[name].shape != leaf.shape:
            raise CommandError(
                f"{source} has {name!r} of shape {list(arrays[name].shape)} but the"
                f" model needs {list(leaf.shape)}; {fix}"
            )
    leaves = [
        _converted(source, name, arrays[name], leaf) for name, leaf in expected.items()
    ]
    return jax.tree.unflatten(jax.tree.structure(template), leaves)


def _is_number(dtype: np.dtype) -> bool:
    """Whether a dtype is numeric, including bool and bfloat16."""
    return dtype.kind == "b" or jax.numpy.issubdtype(dtype, np.number)


def _converted(source: Path, name: str, array: np.ndarray, leaf: Any) -> np.ndarray:
    """Converts an array to a parameter's dtype; only rounding may change values."""
    if not np.can_cast(array.dtype, leaf.dtype, "same_kind"):
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
            found = array.astype(leaf.dtype)
            if not np.array_equal(found, array, equal_nan=True):  # not exact
                raise _other_dtype(source, name, array, leaf)
        return found
    with np.errstate(over="ignore"):
        found = array.astype(leaf.dtype)
    if found.dtype.kind in "iu" and not np.array_equal(found, array):
        raise _too_large(source, name, array, leaf)
    if found.dtype.kind not in "iub" and np.any(
        np.isfinite(array) & ~np.isfinite(found)
    ):
        raise _too_large(source, name, array, leaf)
    return found


def _other_dtype(source: Path, name: str, array: np.ndarray, leaf: Any) -> CommandError:
    if array.dtype.kind == "V" and array.dtype.names is None:  # such as bfloat16
        return CommandError(
            f"{source} has {name!r} in a dtype of {array.dtype.itemsize} bytes that"
            f" NumPy's files do not keep, such as bfloat16; save it as {leaf.dtype}"
        )
    return CommandError(
        f"{source} has {name!r} of {array.dtype} but the model needs {leaf.dtype}; save"
        " the parameters again"
    )


def _too_large(source: Path, name: str, array: np.ndarray, leaf: Any) -> CommandError:
    return CommandError(
        f"{source} has {name!r} of {array.dtype} with values that do not fit"
        f" {leaf.dtype}, which the model needs; save the parameters again"
    )


def named(tree: Any) -> list[tuple[str, Any]]:
    """Lists the dotted paths and arrays of parameters."""
    return [
        (jax.tree_util.keystr(path, simple=True, separator="."), leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]
