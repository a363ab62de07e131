from pathlib import Path

import pytest

from edbatch.data import DataError, Sentence, read_dependency_trees, read_sentences

# They're dogs that bark: a comment, a multiword token, an empty node.
TEXT = """\
# sent_id = 1
1-2\tThey're\t_\t_\t_\t_\t_\t_\t_\t_
1\tThey\tthey\tPRON\tPRP\t_\t3\tnsubj\t3:nsubj\t_
2\t're\tbe\tAUX\tVBP\t_\t3\tcop\t3:cop\t_
3\tdogs\tdog\tNOUN\tNNS\t_\t0\troot\t0:root\t_
3.1\t_\t_\t_\t_\t_\t_\t_\t_\t_
4\tthat\tthat\tPRON\tWDT\t_\t5\tnsubj\t5:nsubj\t_
5\tbark\tbark\tVERB\tVBP\t_\t3\tacl\t3:acl\t_

# sent_id = 2
1\tYes\tyes\tINTJ\tUH\t_\t0\troot\t0:root\t_
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "a.conllu"
    file.write_bytes(text.encode())
    return file


def line(word: int, head: int | str, form: str = "w") -> str:
    return f"{word}\t{form}\t_\t_\t_\t_\t{head}\tdep\t_\t_\n"


def test_dependency_trees(tmp_path: Path) -> None:
    first, second = read_dependency_trees(write(tmp_path, TEXT))
    assert str(first) == ("(root dogs (nsubj They) (cop 're) (acl bark (nsubj that)))")
    assert str(second) == "(root Yes)"


def test_sentences(tmp_path: Path) -> None:
    file = write(tmp_path, TEXT)
    assert read_sentences(file) == [
        Sentence(
            ("They", "'re", "dogs", "that", "bark"),
            ("PRON", "AUX", "NOUN", "PRON", "VERB"),
        ),
        Sentence(("Yes",), ("INTJ",)),
    ]
    by_lemma = read_sentences(file, words="lemma", tags="xpos")
    assert by_lemma[1] == Sentence(("yes",), ("UH",))
    [tree, _] = read_dependency_trees(file, words="lemma", labels="upos")
    assert (tree.word, tree.label) == ("dog", "NOUN")


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.rstrip("\n"),
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\ufeff\n\n" + text + "\n\n# the end\n\n",
        lambda text: text.replace("\n\n", "\n \t\n"),
    ],
)
def test_ends_of_lines_and_files_do_not_matter(tmp_path: Path, change) -> None:
    expected = read_dependency_trees(write(tmp_path, TEXT))
    assert read_dependency_trees(write(tmp_path, change(TEXT))) == expected


def test_a_word_may_hold_any_space_but_a_tab(tmp_path: Path) -> None:
    word = "1\u00a0000 \u2028#"
    [tree] = read_dependency_trees(write(tmp_path, line(1, 0, word)))
    assert tree.word == word


def test_sentences_need_no_heads(tmp_path: Path) -> None:
    assert len(read_sentences(write(tmp_path, line(1, "_")))) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            line(1, 0) + "2 w _ _ _ _ 1 dep _ _",
            "line 2, column 23: a line of CoNLL-U must have 10 fields separated by "
            "tabs; found 1; usually tabs turned into spaces, .*; restore the tabs, or "
            ".* read_columns",
        ),
        ("1\tw\tO\n", "line 1, column 7: a line of CoNLL-U must have 10 .* found 3;"),
        (
            line(1, 0).rstrip() + "\textra\n",
            "line 1, column 23: .* 10 fields separated by tabs; found 11;",
        ),
        (
            "# one\n" + line(1, 0) + line(1, 0),
            "line 3, column 1: words must be numbered 1, 2, 3, ...; found '1' where 2 "
            "comes next; usually a missing blank line .*; insert the blank line, or",
        ),
        (
            line(2, 0),
            "line 1, column 1: words must be numbered .*; found '2' where 1 c",
        ),
        ("x" + line(1, 0), "found 'x1' where 1 comes next"),
        ("0" + line(1, 0), "found '01' where 1 comes next"),
    ],
)
def test_lines_that_are_not_conllu(tmp_path: Path, text: str, message: str) -> None:
    for read in (read_dependency_trees, read_sentences):
        with pytest.raises(DataError, match=message) as caught:
            read(write(tmp_path, text))
        assert str(caught.value).startswith(str(tmp_path / "a.conllu, line "))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            line(1, 0) + line(2, "_"),
            "line 2, column 13: a head must be an integer, 0 or more; found '_'; "
            "usually a file without syntax, .*; read it with read_sentences, or fix",
        ),
        (line(1, "-1"), "line 1, column 13: a head must be an integer.*; found '-1'"),
        (line(1, "²"), "a head must be an integer.*; found '²'"),
        (
            line(1, 0) + line(2, 3),
            "line 2, column 13: a head must be 0 .*; found 3 at ",
        ),
        (line(1, 2) + line(2, 1), "line 1, column 13: exactly one word .*; found none"),
        (
            line(1, 0) + line(2, 1) + line(3, 0),
            "line 3, column 13: exactly one word must have the head 0, the root; found "
            "the words 1, 3; usually two sentences",
        ),
        (
            "\n" + line(1, 0) + line(2, 3) + line(3, 2),
            "line 3, column 13: following heads must lead to the root; found the words "
            "2, 3 in a cycle; usually a mistake of annotation; fix one of their heads",
        ),
        (
            line(1, 0) + line(2, 2),
            "line 2, column 13: following heads .*; found the wor",
        ),
    ],
)
def test_heads_that_are_no_tree(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read_dependency_trees(write(tmp_path, text))
    assert str(caught.value).startswith(str(tmp_path / "a.conllu, line "))


@pytest.mark.parametrize("text", ["\n\n", "# only a comment\n", "1.1" + "\t_" * 9])
def test_a_file_without_sentences(tmp_path: Path, text: str) -> None:
    for read in (read_dependency_trees, read_sentences):
        with pytest.raises(
            DataError, match="must hold at least one sentence; found non"
        ):
            read(write(tmp_path, text))


def test_an_unknown_field(tmp_path: Path) -> None:
    file = write(tmp_path, TEXT)
    with pytest.raises(
        DataError,
        match=r"a field must be one of the 10 of CoNLL-U; found 'upso'; usually a "
        r"misspelling; did you mean 'upos'\?",
    ):
        read_sentences(file, tags="upso")


def test_ewt_has_the_published_counts(shared_data: Path) -> None:
    folder = shared_data / "ud_english_ewt"
    if not folder.is_dir():
        pytest.skip("no ud_english_ewt in the folder of public data sets")
    published = {"dev": (2001, 25147, 10, 11), "test": (2077, 25094, 12, 12)}
    for part, (sentences, words, height, arity) in published.items():
        file = folder / f"en_ewt-ud-{part}.conllu"
        trees = read_dependency_trees(file)
        assert len(trees) == len(read_sentences(file)) == sentences
        assert sum(tree.num_nodes() for tree in trees) == words
        assert max(tree.height() for tree in trees) == height
        nodes = [node for tree in trees for node in tree.postorder()]
        assert max(len(node.children) for node in nodes) == arity
        assert all(node.word is not None and node.label for node in nodes)
