"""Parameters of workloads as `.npz` files: one array per dotted path."""

import zipfile
from pathlib import Path
from typing import Any

import jax
import numpy as np

from edbatch.cli.one_sentence import CommandError
from edbatch.data import PairVocabulary, Vocabulary
from edbatch.errors import nearest, shown
from edbatch.limits import check_archive
from edbatch.models.shared.workload import Vocabularies
from edbatch.policies.files.whole_file import write_whole

VOCABULARY, TARGET_VOCABULARY = "vocabulary", "target_vocabulary"


def save_params(path: Path, params: Any, vocabulary: Vocabularies | None) -> None:
    """Writes parameters, and the words by number if there are any."""
    arrays = {name: np.asarray(leaf) for name, leaf in named(params)}
    if isinstance(vocabulary, PairVocabulary):
        arrays[TARGET_VOCABULARY] = np.array(vocabulary.target.tokens)
        vocabulary = vocabulary.source
    if vocabulary is not None:
        arrays[VOCABULARY] = np.array(vocabulary.tokens)
    save_arrays(path, arrays)


def save_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes named arrays as `.npz`, as a whole."""

    def write(beside: Path) -> None:
        with open(beside, "xb") as file:  # savez would append a suffix to a name
            np.savez(file, **arrays)  # type: ignore[arg-type]

    write_whole(path, write)


def read_arrays(path: Path) -> tuple[dict[str, np.ndarray], Vocabularies | None]:
    """Reads what `save_params` wrote.

    Returns:
        Arrays by dotted path, and the vocabulary if there is one.

    Raises:
        CommandError: There is no such file, or it is no `.npz` file of plain arrays,
            or one that unpacks to far too much.
    """
    wrong = (
        f"--params takes an .npz file of arrays, as --save-params writes it, but {path}"
    )
    if not path.is_file():
        raise CommandError(f"{wrong} does not exist; check the name")
    if not zipfile.is_zipfile(path):  # which an .npz file is
        raise CommandError(f"{wrong} is another kind of file, or cut short")
    try:
        check_archive(path)
        with np.load(path, allow_pickle=False) as content:
            arrays = {name: np.asarray(content[name]) for name in content.files}
    except Exception as error:  # a damaged archive may raise about anything
        text = (str(error).splitlines() or [type(error).__name__])[0]
        raise CommandError(f"{wrong} cannot be read: {text[:200]}") from error
    found = []
    for name in (VOCABULARY, TARGET_VOCABULARY):
        if name in arrays:
            words = arrays.pop(name)
            if words.dtype.kind != "U" or words.ndim != 1:
                raise CommandError(
                    f"{wrong} has as {name!r} {words.dtype}{list(words.shape)} and no"
                    " list of words; save the parameters again"
                )
            found.append(Vocabulary(words.tolist()))
    if len(found) == 2:
        return arrays, PairVocabulary(*found)
    return arrays, found[0] if found else None


def fill(
    template: Any,
    arrays: dict[str, np.ndarray],
    source: Path,
    mend: str = "give the options, such as --arity, that the parameters were made for",
) -> Any:
    """Puts arrays into the structure of parameters.

    Args:
        template: Shapes of the parameters.
        arrays: Arrays by dotted path.
        source: The file that they come from, for messages.
        mend: What to do about an array of another shape.

    Raises:
        CommandError: An array is missing, unknown, of another shape, or holds no
            numbers.
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
            raise CommandError(
                f"{source} has {name!r} of {arrays[name].dtype} but the model needs"
                f" {leaf.dtype}; save the parameters again"
            )
        if arrays[name].shape != leaf.shape:
            raise CommandError(
                f"{source} has {name!r} of shape {list(arrays[name].shape)} but the"
                f" model needs {list(leaf.shape)}; {mend}"
            )
    leaves = [arrays[name].astype(leaf.dtype) for name, leaf in expected.items()]
    return jax.tree.unflatten(jax.tree.structure(template), leaves)


def _is_number(dtype: np.dtype) -> bool:
    """Whether arrays of a dtype are numbers, bfloat16 included."""
    return dtype.kind == "b" or jax.numpy.issubdtype(dtype, np.number)


def named(tree: Any) -> list[tuple[str, Any]]:
    """Lists the arrays of parameters with their dotted paths."""
    return [
        (jax.tree_util.keystr(path, simple=True, separator="."), leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]
