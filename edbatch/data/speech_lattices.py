"""Word lattices of speech recognisers, and the reader of their format PLF.

PLF is the Python Lattice Format of Moses and Joshua: one lattice per line, as a tuple
of nodes. A node is the tuple of its outgoing arcs; an arc is a word, a score and the
distance to its target node. The last node has no outgoing arcs and no tuple.
"""

import ast
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from edbatch.data.files import Paths, SourceText, read_sources
from edbatch.data.vocabulary import Vocabulary
from edbatch.errors import DataError, shown

SUFFIXES = (".plf", ".lat")


class Arc(NamedTuple):
    """A word between two nodes of a lattice.

    Attributes:
        source: The node where the arc begins; nodes count from 0.
        target: The node where the arc ends.
        word: The word, or its index once a vocabulary is applied.
        score: The score of the arc, such as a log-probability.

    Example:
        >>> Arc(source=0, target=2, word="hello", score=-1.5).word
        'hello'
    """

    source: int
    target: int
    word: str | int
    score: float


@dataclass(frozen=True, slots=True)
class SpeechLattice:
    """A lattice: arcs with words between nodes that are in topological order.

    A lattice has at least one arc. Its last node is the largest target. Every node
    except node 0 has an incoming arc.

    Attributes:
        arcs: [E] The arcs, in any order.

    Raises:
        DataError: There is no arc, an arc does not lead to a later node, or a node
            other than node 0 has no incoming arc.

    Example:
        >>> lattice = SpeechLattice([Arc(0, 1, "tea", -0.7), Arc(0, 1, "tee", -0.9)])
        >>> lattice.num_nodes
        2
        >>> [[arc.word for arc in arcs] for arcs in lattice.incoming()]
        [[], ['tea', 'tee']]
    """

    arcs: tuple[Arc, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "arcs", tuple(self.arcs))
        fault = _find_fault(self.arcs)
        if fault is not None:
            raise DataError(fault)

    @property
    def num_nodes(self) -> int:
        """The number of nodes."""
        return 1 + max(arc.target for arc in self.arcs)

    def incoming(self) -> list[list[Arc]]:
        """Lists, for each node, the arcs that end there."""
        found: list[list[Arc]] = [[] for _ in range(self.num_nodes)]
        for arc in self.arcs:
            found[arc.target].append(arc)
        return found


def read_plf(path: Paths) -> list[SpeechLattice]:
    r"""Reads lattices in PLF, one per line.

    Only line feeds end lines. Blank lines and empty lattices, ``()``, mean that nothing
    was recognised in an utterance; they are skipped.

    Args:
        path: A file, a folder (all its `.plf`, `.lat`, and these with `.gz`,
            recursively), or several of them.

    Returns:
        The lattices, in the order of the files.

    Raises:
        DataError: A path is missing; or a file is unreadable, contains no lattice, or
            has a line that is not PLF.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder, "a.plf")
        ...     _ = file.write_text("((('tea', -0.7, 1), ('tee', -0.9, 1),),)\n()\n")
        ...     [lattice] = read_plf(file)
        >>> lattice.arcs[1]
        Arc(source=0, target=1, word='tee', score=-0.9)
    """
    return [
        lattice
        for source in read_sources(path, SUFFIXES)
        for lattice in _lattices(source)
    ]


def index_speech_lattice(lattice: SpeechLattice, words: Vocabulary) -> SpeechLattice:
    """Replaces the words of a lattice by their indices.

    Args:
        lattice: A lattice of strings.
        words: The vocabulary.

    Returns:
        The lattice of indices.

    Raises:
        DataError: A word is not a string.

    Example:
        >>> lattice = SpeechLattice([Arc(0, 1, "tea", -0.7)])
        >>> index_speech_lattice(lattice, Vocabulary(["tea"]))
        SpeechLattice(arcs=(Arc(source=0, target=1, word=1, score=-0.7),))
    """
    return SpeechLattice(
        tuple(arc._replace(word=words.index(arc.word)) for arc in lattice.arcs)
    )


def _lattices(source: SourceText) -> Iterator[SpeechLattice]:
    found = False
    for line, text in source.lines():
        if not text.strip():
            continue
        arcs = _parse(source, line, text)
        if arcs:
            fault = _find_fault(arcs)
            if fault is not None:
                raise source.error_at(line, 1, fault)
            found = True
            yield SpeechLattice(arcs)
    if not found:
        raise source.error_without("lattice")


def _parse(source: SourceText, line: int, text: str) -> tuple[Arc, ...]:
    """Reads one line without checking the targets of its arcs."""
    try:
        with warnings.catch_warnings():
            # Warnings about backslashes in words; the words are kept unchanged.
            warnings.simplefilter("ignore")
            nodes = ast.literal_eval(text.strip())
    except (
        *(ValueError, SyntaxError, MemoryError, RecursionError),
        TypeError,  # raised for a set that contains a list
    ) as error:
        raise source.error_at(
            line,
            getattr(error, "offset", None) or 1,
            "a line must be a lattice in PLF, tuples of (word, score, distance); found "
            f"{shown(text)}, which is no Python literal; usually a line that was "
            "cut, or a file of another format; fix the line, or leave it out",
        ) from None
    if not isinstance(nodes, tuple):
        raise _wrong_part(source, line, "a lattice must be a tuple of nodes", nodes)
    arcs: list[Arc] = []
    for number, node in enumerate(nodes):
        if not isinstance(node, tuple):
            raise _wrong_part(source, line, "a node must be a tuple of arcs", node)
        for part in node:
            if not _is_arc(part):
                rule = "an arc must be (word, score, distance), its score finite"
                raise _wrong_part(source, line, rule, part)
            word, score, distance = part
            arcs.append(Arc(number, number + distance, word, float(score)))
    return tuple(arcs)


def _is_arc(part: Any) -> bool:
    return (
        isinstance(part, tuple)
        and len(part) == 3
        and isinstance(part[0], str)
        and _is_number(part[1])
        and type(part[2]) is int
    )


def _is_number(score: Any) -> bool:
    return type(score) in (int, float) and abs(score) <= sys.float_info.max


def _find_fault(arcs: tuple[Arc, ...]) -> str | None:
    """Explains why arcs do not form a lattice; None if they do."""
    if not arcs:
        return (
            "a SpeechLattice must have an arc; found none; usually an utterance in "
            "which nothing was recognised; leave it out"
        )
    for arc in arcs:
        if not 0 <= arc.source < arc.target:
            return (
                f"an arc must lead to a later node; found {shown(arc)}; usually nodes "
                "that are not in topological order; sort them, or fix the distance"
            )
    targets = {arc.target for arc in arcs}
    for node in range(1, max(targets)):
        if node not in targets:
            return (
                f"every node but the first must have an incoming arc; found none for "
                f"node {node}; usually a distance that leads past it; fix the distance"
            )
    return None


def _wrong_part(source: SourceText, line: int, rule: str, found: object) -> DataError:
    return source.error_at(
        line,
        1,
        f"{rule}; found {shown(found)}; usually a comma that is missing "
        "behind a single element, or another format; write ((('word', -0.5, 1),),)",
    )
