"""Tagged sentences of workloads: reads CoNLL-U or column files, describes the tags."""

import os
from pathlib import Path

from edbatch.data import Sentence, read_columns, read_sentences
from edbatch.data.conllu import SUFFIXES
from edbatch.data.files import PathLike, Paths
from edbatch.models.shared.workload import Labels

TAGGED_FORMATS = "CoNLL-U, or columns of tokens and tags"


def read_tagged(path: Paths) -> list[Sentence]:
    r"""Reads tagged sentences from CoNLL-U files and from column files.

    Args:
        path: A file, a folder, or several of them. Files named ``.conllu`` or
            ``.conllu.gz`` are CoNLL-U; others have a token and its tags per line. If a
            folder contains CoNLL-U files, only those are read.

    Returns:
        The sentences; words and tags are still strings.

    Raises:
        DataError: A file is missing or malformed.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder, "ner.conll")
        ...     _ = file.write_text("In O\nOslo B-LOC\n")
        ...     read_tagged(file)
        [Sentence(words=('In', 'Oslo'), tags=('O', 'B-LOC'))]
    """
    paths = [path] if isinstance(path, str | os.PathLike) else list(path)
    if not paths:
        return read_columns(paths)  # raises the error about an empty list of paths
    return [sentence for each in paths for sentence in _read_one(each)]


def _read_one(path: PathLike) -> list[Sentence]:
    path = Path(path)
    files = path.rglob("*") if path.is_dir() else [path]
    if any(each.name.removesuffix(".gz").endswith(SUFFIXES) for each in files):
        return read_sentences(path)
    return read_columns(path)


def tags_of(num_tags: int) -> Labels:
    """Describes the tags of instances, at most ``num_tags`` different ones."""
    return Labels("tags", lambda instance: instance.tags, num_tags)
