"""Reader of column files: one token and its tag per line, as for named entities.

This is the format of CoNLL-2003, WikiGold and WNUT-17: lines of `token ... tag`, and a
blank line between sentences. Tags are kept as they are (BIO, IO, ...).
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from edbatch.data.files import Paths, SourceText, read_sources
from edbatch.data.sentences import Sentence
from edbatch.errors import DataError, shown

SUFFIXES = (".conll", ".bio", ".iob", ".iob2", ".tsv", ".txt")
DOCUMENT_START = "-DOCSTART-"

# Only ASCII white space separates columns: tokens may contain a no-break space.
_BLANK = " \t\f\v"
_SPACES = re.compile(" +")


class Row(NamedTuple):
    """One line of a column file: its number, from 1, and its fields."""

    line: int
    fields: list[str]


def read_columns(
    path: Paths, *, word_column: int = 0, tag_column: int = -1
) -> list[Sentence]:
    r"""Reads tagged sentences from files with one token and its tags per line.

    If a line contains a tab, tabs separate its columns, otherwise spaces do. Lines that
    begin with `-DOCSTART-` are skipped and end a sentence.

    Args:
        path: A file, a folder (all its `.conll`, `.bio`, `.iob`, `.iob2`, `.tsv`,
            `.txt`, and these with `.gz`, recursively), or several of them.
        word_column: Index of the column with the token; negative indices count from
            the last column.
        tag_column: Index of the column with the tag; negative indices count from the
            last column.

    Returns:
        The sentences, in the order of the files.

    Raises:
        DataError: A path is missing; or a file is unreadable, contains no sentence, or
            has a line with too few columns or with a different number of columns than
            the first line.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder, "ner.conll")
        ...     _ = file.write_text("In O\nOslo B-LOC\n\nYes O\n")
        ...     [sentence.tags for sentence in read_columns(file)]
        [('O', 'B-LOC'), ('O',)]
    """
    return [
        Sentence(
            tuple(row.fields[word_column] for row in rows),
            tuple(row.fields[tag_column] for row in rows),
        )
        for source in read_sources(path, SUFFIXES)
        for rows in sentence_rows(source, word_column, tag_column)
    ]


def sentence_rows(source: SourceText, *columns: int) -> Iterator[list[Row]]:
    """Yields the lines of each sentence; there is at least one sentence.

    Args:
        source: The text of a column file.
        *columns: Indices of the columns that every line must have; negative indices
            count from the last column.

    Yields:
        The lines of one sentence.

    Raises:
        DataError: As for `read_columns`.
    """
    needed = max(2, *(column + 1 if column >= 0 else -column for column in columns))
    rows: list[Row] = []
    first: tuple[int, int] | None = None  # first token line: its number, its columns
    for line, text in source.lines():
        if not text.strip(_BLANK) or text.startswith(DOCUMENT_START):
            if rows:
                yield rows
                rows = []
            continue
        fields = _split(text)
        if first is None:
            first = line, len(fields)
        if len(fields) < needed:
            raise _too_few(source, line, text, len(fields), needed)
        if len(fields) != first[1]:
            raise _uneven(source, line, text, len(fields), first)
        rows.append(Row(line, fields))
    if rows:
        yield rows
    elif first is None:
        raise source.error_without("sentence")


def _split(text: str) -> list[str]:
    if "\t" in text:
        return text.split("\t")
    return _SPACES.split(text.strip(_BLANK))


def _too_few(
    source: SourceText, line: int, text: str, found: int, needed: int
) -> DataError:
    return source.error_at(
        line,
        len(text) + 1,
        f"a line must have at least {needed} columns; found {found} in {shown(text)}; "
        "usually a missing tag, or a file without tags; add the tag, or choose "
        "word_column and tag_column among the columns there are",
    )


def _uneven(
    source: SourceText, line: int, text: str, found: int, first: tuple[int, int]
) -> DataError:
    return source.error_at(
        line,
        1,
        f"every line must have as many columns as the first, line {first[0]}, which "
        f"has {first[1]}; found {found} in {shown(text)}; usually a token that holds a "
        "space, or a missing column; separate the columns by tabs, or fix the line",
    )
