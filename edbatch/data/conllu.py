"""Reader of CoNLL-U, the format of Universal Dependencies.

Format: https://universaldependencies.org/format.html. Comments, multiword tokens
(`1-2`) and empty nodes (`1.1`) are skipped: the basic tree over the syntactic words is
read, not the enhanced graph.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from edbatch.data.dependencies import build_tree, find_fault
from edbatch.data.files import Paths, SourceText, read_sources
from edbatch.data.parsed_sentences import ParsedSentence
from edbatch.data.sentences import Sentence
from edbatch.data.trees import Tree
from edbatch.errors import DataError, nearest, shown
from edbatch.limits import MAX_DIGITS

SUFFIXES = (".conllu",)
FIELDS = (
    "id",
    "form",
    "lemma",
    "upos",
    "xpos",
    "feats",
    "head",
    "deprel",
    "deps",
    "misc",
)

_ID = FIELDS.index("id")
_HEAD = FIELDS.index("head")
_SKIPPED_ID = re.compile(r"[0-9]+[-.][0-9]+")


class _Word(NamedTuple):
    line: int
    fields: list[str]

    def error(self, source: SourceText, field: int, message: str) -> DataError:
        column = 1 + sum(len(text) + 1 for text in self.fields[:field])
        return source.error_at(self.line, column, message)


def read_sentences(
    path: Paths, *, words: str = "form", tags: str = "upos"
) -> list[Sentence]:
    r"""Reads the tagged sentences of CoNLL-U files.

    Args:
        path: A file, a folder (all its `.conllu` and `.conllu.gz`, recursively), or
            several of them.
        words: The field to take words from, for example `"form"` or `"lemma"`.
        tags: The field to take tags from, for example `"upos"`, `"xpos"` or `"deprel"`.

    Returns:
        The sentences, in the order of the files.

    Raises:
        DataError: A path is missing; a field is unknown; or a file is unreadable,
            contains no sentence, or has a line that is not CoNLL-U.

    Example:
        >>> import pathlib, tempfile
        >>> text = "1 Dogs dog NOUN NNS _ 2 nsubj _ _\n2 bark bark VERB VB _ 0 root _ _"
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder, "a.conllu")
        ...     _ = file.write_text(text.replace(" ", "\t"))
        ...     read_sentences(file)
        [Sentence(words=('Dogs', 'bark'), tags=('NOUN', 'VERB'))]
    """
    word, tag = _field(words), _field(tags)
    return [
        Sentence(
            tuple(row.fields[word] for row in rows),
            tuple(row.fields[tag] for row in rows),
        )
        for source in read_sources(path, SUFFIXES)
        for rows in _blocks(source)
    ]


def read_dependency_trees(
    path: Paths, *, words: str = "form", labels: str = "deprel"
) -> list[Tree]:
    r"""Reads the dependency trees of CoNLL-U files.

    Every node has a word, and its relation to its head as label. The children of a node
    are its dependents, in surface order.

    Args:
        path: A file, a folder (all its `.conllu` and `.conllu.gz`, recursively), or
            several of them.
        words: The field to take words from, for example `"form"` or `"lemma"`.
        labels: The field to take labels from, for example `"deprel"` or `"upos"`.

    Returns:
        The trees, in the order of the files.

    Raises:
        DataError: As for `read_sentences`; also if heads are not integers or do not
            form a tree with one root.

    Example:
        >>> import pathlib, tempfile
        >>> text = "1 Dogs dog NOUN NNS _ 2 nsubj _ _\n2 bark bark VERB VB _ 0 root _ _"
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder, "a.conllu")
        ...     _ = file.write_text(text.replace(" ", "\t"))
        ...     print(*read_dependency_trees(file))
        (root bark (nsubj Dogs))
    """
    word, label = _field(words), _field(labels)
    trees: list[Tree] = []
    for source in read_sources(path, SUFFIXES):
        for rows in _blocks(source):
            heads = _tree_heads(source, rows)
            tree_words = [row.fields[word] for row in rows]
            tree_labels = [row.fields[label] for row in rows]
            trees.append(build_tree(tree_words, heads, tree_labels))
    return trees


def read_parsed_sentences(
    path: Paths, *, words: str = "form", tags: str = "upos", labels: str = "deprel"
) -> list[ParsedSentence]:
    r"""Reads the sentences of CoNLL-U files with their dependency parses.

    Args:
        path: A file, a folder (all its `.conllu` and `.conllu.gz`, recursively), or
            several of them.
        words: The field to take words from, for example `"form"` or `"lemma"`.
        tags: The field to take parts of speech from, for example `"upos"` or `"xpos"`.
        labels: The field to take relations from.

    Returns:
        The sentences, in the order of the files, including those with crossing arcs.

    Raises:
        DataError: As for `read_dependency_trees`.

    Example:
        >>> import pathlib, tempfile
        >>> text = "1 Dogs dog NOUN NNS _ 2 nsubj _ _\n2 bark bark VERB VB _ 0 root _ _"
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder, "a.conllu")
        ...     _ = file.write_text(text.replace(" ", "\t"))
        ...     [sentence] = read_parsed_sentences(file)
        >>> sentence.heads, sentence.relations, sentence.is_projective
        ((2, 0), ('nsubj', 'root'), True)
    """
    fields = [_field(words), _field(tags), _field(labels)]
    found: list[ParsedSentence] = []
    for source in read_sources(path, SUFFIXES):
        for rows in _blocks(source):
            heads = _tree_heads(source, rows)
            texts = [tuple(row.fields[field] for row in rows) for field in fields]
            found.append(ParsedSentence(texts[0], texts[1], tuple(heads), texts[2]))
    return found


def _tree_heads(source: SourceText, rows: list[_Word]) -> list[int]:
    """Reads the heads of a sentence, which must form a tree with one root."""
    heads = [_head(source, row) for row in rows]
    fault = find_fault(heads)
    if fault is not None:
        raise rows[fault[0]].error(source, _HEAD, fault[1])
    return heads


def _blocks(source: SourceText) -> Iterator[list[_Word]]:
    """Yields the words of each sentence; there is at least one sentence."""
    rows: list[_Word] = []
    found = False
    for line, text in source.lines():
        if not text.strip():
            if rows:
                found = True
                yield rows
                rows = []
        elif not text.startswith("#"):
            row = _Word(line, text.split("\t"))
            if _is_word(source, row, expected_id=len(rows) + 1):
                rows.append(row)
    if rows:
        yield rows
    elif not found:
        raise source.error_without("sentence")


def _is_word(source: SourceText, row: _Word, expected_id: int) -> bool:
    """Whether a line is the expected word; False for multiword tokens, empty nodes."""
    if len(row.fields) != len(FIELDS):
        raise row.error(
            source,
            min(len(row.fields), len(FIELDS)),
            f"a line of CoNLL-U must have {len(FIELDS)} fields separated by tabs; "
            f"found {len(row.fields)}; usually tabs turned into spaces, or another "
            "format; restore the tabs, or read token and tag columns with read_columns",
        )
    text = row.fields[_ID]
    if text == str(expected_id):
        return True
    if _SKIPPED_ID.fullmatch(text):
        return False
    raise row.error(
        source,
        _ID,
        f"words must be numbered 1, 2, 3, ...; found {shown(text)} where {expected_id} "
        "comes next; usually a missing blank line between sentences, or a deleted "
        "line; insert the blank line, or renumber ids and heads",
    )


def _head(source: SourceText, row: _Word) -> int:
    text = row.fields[_HEAD]
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS):
        raise row.error(
            source,
            _HEAD,
            f"a head must be an integer, 0 or more; found {shown(text)}; usually a "
            "file without syntax, or a shifted column; read it with read_sentences, or "
            "fix the line",
        )
    return int(text)


def _field(name: str) -> int:
    if name not in FIELDS:
        raise DataError(
            f"a field must be one of the {len(FIELDS)} of CoNLL-U; found "
            f"{shown(name)}; usually a misspelling; {nearest(name, FIELDS)}"
        )
    return FIELDS.index(name)
