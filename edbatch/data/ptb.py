"""Reader of constituency trees in Penn Treebank brackets.

The format is `(S (NP (DT the) (NN dog)) (VP (VBZ barks)))`, as in the Penn Treebank's
`.mrg` files, GUM and the Stanford Sentiment Treebank. A tree may span several lines, a
line may have several trees, and each tree may have an unlabelled bracket around it.
Words are kept as they are, including `-LRB-` and traces.
"""

import re

from edbatch.data.files import Paths, SourceText, read_sources
from edbatch.data.trees import Tree
from edbatch.errors import DataError, shown
from edbatch.limits import MAX_NESTING

SUFFIXES = (".ptb", ".mrg", ".txt", ".bracket", ".brackets")

# Only ASCII white space separates tokens: words may contain a no-break space. The first
# alternative matches a whole `(NN dog)`, the most frequent kind of bracket.
_TOKEN = re.compile(
    r"\(\s*([^\s()]+)\s+([^\s()]+)\s*\)"  # groups 1 and 2: label and word
    r"|\(\s*([^\s()]*)"  # group 3: label, perhaps empty
    r"|(\))"  # group 4
    r"|([^\s()]+)",  # group 5: a word next to brackets
    re.ASCII,
)
_PRETERMINAL, _OPEN, _CLOSE = 2, 3, 4


def read_trees(path: Paths) -> list[Tree]:
    """Reads constituency trees in bracket notation.

    A node over one word, `(NN dog)`, is a leaf with label and word. If a node has
    several words, each becomes a leaf without label. An unlabelled bracket around a
    whole tree is dropped.

    Args:
        path: A file, a folder (all its `.ptb`, `.mrg`, `.txt`, `.bracket`, `.brackets`,
            and these with `.gz`, recursively), or several of them.

    Returns:
        The trees, in the order of the files.

    Raises:
        DataError: A path is missing; or a file is unreadable, contains no tree, or has
            unbalanced brackets, brackets nested too deep, an empty node or a word
            outside a tree.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder, "sst.txt")
        ...     _ = file.write_text("(3 (2 It) (4 works))")
        ...     [tree] = read_trees(file)
        >>> tree.label, tree.words()
        ('3', ('It', 'works'))
    """
    return [tree for source in read_sources(path, SUFFIXES) for tree in _parsed(source)]


def parse_trees(text: str) -> list[Tree]:
    """Parses constituency trees from a string, as `read_trees` does from a file.

    Args:
        text: Any number of trees, at least one.

    Returns:
        The trees.

    Raises:
        DataError: As for `read_trees`; the file is called `<text>`.

    Example:
        >>> [tree] = parse_trees("( (S (NP (PRP It)) (VP (VBZ works))))")
        >>> print(tree)
        (S (NP (PRP It)) (VP (VBZ works)))
    """
    return _parsed(SourceText("<text>", text))


def _parsed(source: SourceText) -> list[Tree]:
    trees: list[Tree] = []
    labels: list[str] = []
    children: list[list[Tree | str]] = []
    opened: list[int] = []  # offset of the bracket of each open node
    siblings: list[Tree | str] = []
    node: Tree | str
    for token in _TOKEN.finditer(source.text):
        kind = token.lastindex
        if kind == _OPEN:
            labels.append(token[3])
            children.append(siblings)
            opened.append(token.start())
            if len(opened) > MAX_NESTING:
                raise _too_deep(source, opened[-1])
            siblings = []
            continue
        if kind == _PRETERMINAL:
            node = Tree(token[1], token[2])
        elif kind == _CLOSE:
            if not labels:
                raise _too_many_closing(source, token.start())
            if not siblings:
                raise _empty_node(source, opened[-1], labels[-1])
            node = _closed(labels.pop(), siblings)
            siblings = children.pop()
            opened.pop()
        elif labels:
            node = token[5]
        else:
            raise _word_outside(source, token.start(), token[5])
        if labels:
            siblings.append(node)
        else:
            assert isinstance(node, Tree), "a word outside a tree was refused above"
            trees.append(_without_outer_bracket(node))
    if opened:
        raise _unclosed(source, opened)
    if not trees:
        raise source.error_without("tree")
    return trees


def _closed(label: str, children: list[Tree | str]) -> Tree:
    if len(children) == 1 and isinstance(children[0], str):
        return Tree(label or None, children[0])
    nodes = (Tree(None, node) if isinstance(node, str) else node for node in children)
    return Tree(label or None, None, tuple(nodes))


def _without_outer_bracket(tree: Tree) -> Tree:
    while tree.label is None and len(tree.children) == 1:
        tree = tree.children[0]
    return tree


def _too_many_closing(source: SourceText, offset: int) -> DataError:
    return source.error(
        offset,
        "every ')' must close a '('; found one with no bracket open; usually a round "
        "bracket that is a word, or one ')' too many in the tree before; write the "
        "word as -RRB-, or delete the bracket",
    )


def _unclosed(source: SourceText, opened: list[int]) -> DataError:
    line, column = source.position(opened[0])
    return source.error(
        len(source.text.rstrip()),
        "every '(' must be closed; found the end of the file with "
        f"{len(opened)} open, in the tree that opens at line {line}, column {column}; "
        "usually a file cut short, or a round bracket that is a word; fetch the file "
        "again, or write the word as -LRB-",
    )


def _too_deep(source: SourceText, offset: int) -> DataError:
    return source.error(
        offset,
        f"trees must be nested at most {MAX_NESTING:,} deep; found more '(' open here; "
        "usually closing brackets that are missing, or a file that is no treebank; fix "
        "the brackets, or leave the file out",
    )


def _empty_node(source: SourceText, offset: int, label: str) -> DataError:
    return source.error(
        offset,
        f"every node must hold a word or other nodes; found {shown(f'({label})')}; "
        "usually a removed word, or a missing label, as in (dog); write the node as "
        "(NN dog), or delete it",
    )


def _word_outside(source: SourceText, offset: int, word: str) -> DataError:
    return source.error(
        offset,
        f"every word must stand inside a tree; found {shown(word)} outside of any; "
        "usually a file that is no treebank, or one ')' too many before it; leave the "
        "file out, or fix the brackets",
    )
