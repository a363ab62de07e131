from pathlib import Path
from statistics import mean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edbatch.data import DataError, Tree, binarize, parse_trees, read_trees


def parse(text: str) -> Tree:
    [tree] = parse_trees(text)
    return tree


THE_DOG = Tree("NP", children=[Tree("DT", "the"), Tree("NN", "dog")])


@pytest.mark.parametrize(
    "text",
    [
        "(NP (DT the) (NN dog))",
        "(NP(DT the)(NN dog))",
        "  ( NP\n\t( DT the )\r\n   (NN\n  dog\n)  )\n\n",
        "( (NP (DT the) (NN dog)))",
        "(((NP (DT the) (NN dog))))",
    ],
)
def test_white_space_and_outer_brackets_do_not_matter(text: str) -> None:
    assert parse(text) == THE_DOG


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("(NN dog)", Tree("NN", "dog")),
        ("(NP (NN dog))", Tree("NP", None, [Tree("NN", "dog")])),
        (
            "(2 (2 It) (4 works))",
            Tree("2", None, [Tree("2", "It"), Tree("4", "works")]),
        ),
        ("(-LRB- -LRB-)", Tree("-LRB-", "-LRB-")),
        ("(-NONE- *T*-1)", Tree("-NONE-", "*T*-1")),
        ("(X a b)", Tree("X", None, [Tree(None, "a"), Tree(None, "b")])),
        ("(X (A a) b)", Tree("X", None, [Tree("A", "a"), Tree(None, "b")])),
        ("(X a (B b))", Tree("X", None, [Tree(None, "a"), Tree("B", "b")])),
        ("((A a) (B b))", Tree(None, None, [Tree("A", "a"), Tree("B", "b")])),
        ("(X ((A a)))", Tree("X", None, [Tree(None, None, [Tree("A", "a")])])),
        ("(CD 1\u00a0000)", Tree("CD", "1\u00a0000")),
    ],
)
def test_forms_of_nodes(text: str, tree: Tree) -> None:
    assert parse(text) == tree


def test_several_trees_stand_on_one_line_or_many() -> None:
    trees = parse_trees("(A a) (B b)\n( (S (C c)\n  (D d)) )(E e)")
    assert [str(tree) for tree in trees] == [
        "(A a)",
        "(B b)",
        "(S (C c) (D d))",
        "(E e)",
    ]


def test_files_of_a_folder_are_read_in_order(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name, text in [
        ("b.mrg", "(B b)"),
        ("a.ptb", "(A a)"),
        ("sub/c.TXT", "(C c)"),
        ("d.bracket", "(D d)"),
        ("e.brackets", "(E e)"),
        ("notes.md", "no tree"),
        (".hidden.ptb", "no tree"),
    ]:
        (tmp_path / name).write_text(text)
    words = [tree.word for tree in read_trees(tmp_path)]
    assert words == ["a", "b", "d", "e", "c"]
    paths = [tmp_path / "sub", str(tmp_path / "a.ptb")]
    assert [tree.word for tree in read_trees(paths)] == ["c", "a"]


def test_a_tree_100_000_deep_is_read() -> None:
    depth = 100_000
    tree = parse("(X (Y y) " * depth + "(Z z)" + ")" * depth)
    assert tree.height() == depth
    assert tree.words() == ("y",) * depth + ("z",)


plain = st.text(
    st.characters(codec="utf-8", exclude_characters="() \t\n\r\f\v"), min_size=1
)
round_trip_trees = st.recursive(
    st.builds(Tree, plain, plain),
    lambda below: (
        st.builds(Tree, plain, st.none(), st.lists(below, min_size=1, max_size=4))
        # At the root, an unlabelled node with one child would be an outer bracket.
        | st.builds(Tree, st.none(), st.none(), st.lists(below, min_size=2, max_size=4))
    ),
    max_leaves=20,
)


@given(st.lists(round_trip_trees, min_size=1, max_size=3))
def test_what_is_written_is_read(trees: list[Tree]) -> None:
    assert parse_trees("\n".join(map(str, trees))) == trees
    assert parse_trees("".join(f"( {tree} )" for tree in trees)) == trees


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "(A a)\n(B b))",
            r"line 2, column 6: every '\)' must close a '\('; found one with no "
            r"bracket open; usually .*; write the word as -RRB-, or delete the bracket",
        ),
        (
            "(A a)\n (S (B b)\n (C c)\n\n",
            r"line 3, column 7: every '\(' must be closed; found the end of the file "
            r"with 1 open, in the tree that opens at line 2, column 2; usually .*; "
            "fetch the file again, or write the word as -LRB-",
        ),
        ("(S (B b", r"column 8: .* with 2 open, .* line 1, column 1"),
        (
            "(A a)\ndog (B b)",
            "line 2, column 1: every word must stand inside a tree; found 'dog' "
            "outside of any; usually .*; leave the file out, or fix the brackets",
        ),
        (
            "(S\n  ())",
            r"line 2, column 3: every node must hold a word or other nodes; found "
            r"'\(\)'; usually .*; write the node as \(NN dog\), or delete it",
        ),
        ("(S (NP ) (B b))", r"line 1, column 4: every node must .*; found '\(NP\)'"),
        ("( )", r"line 1, column 1: every node must .*; found '\(\)'"),
        (
            " \n ",
            "a file must hold at least one tree; found none in 3 characters; usually a "
            "file of blank lines or comments, or of another format; leave it out or",
        ),
    ],
)
def test_faults_are_named_with_their_place(
    tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "bad.ptb"
    file.write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        read_trees(file)
    assert str(caught.value).startswith(str(file))


def test_the_second_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.ptb").write_text("(A a)")
    (tmp_path / "b.ptb").write_text("(B b))")
    with pytest.raises(DataError, match=r"b\.ptb, line 1, column 6: "):
        read_trees(tmp_path)


def test_gum_is_read_as_counted_without_this_reader(shared_data: Path) -> None:
    folder = shared_data / "gum_const" / "const"
    if not folder.is_dir():
        pytest.skip("no gum_const in the folder of public data sets")
    trees = read_trees(folder)
    texts = [file.read_text(encoding="utf-8") for file in folder.glob("*.ptb")]
    assert len(trees) == sum(text.count("(ROOT") for text in texts)
    assert sum(tree.num_nodes() for tree in trees) == sum(
        text.count("(") for text in texts
    )
    assert all(tree.label == "ROOT" for tree in trees)
    lengths = [len(tree.words()) for tree in trees]
    assert median(lengths) == 19 and 21 < mean(lengths) < 22
    binary = [binarize(tree) for tree in trees]
    assert all(len(n.children) in (0, 2) for tree in binary for n in tree.postorder())
    assert [tree.words() for tree in binary] == [tree.words() for tree in trees]
    text = "\n".join(map(str, trees))
    assert parse_trees(text) == trees
