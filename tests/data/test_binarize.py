from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edbatch.data import DataError, Tree, binarize, collapse_unary, parse_trees


def parse(text: str) -> Tree:
    [tree] = parse_trees(text)
    return tree


CASES = [
    # tree, binarized right, binarized left, unary chains collapsed
    ("(NN dog)", "(NN dog)", "(NN dog)", "(NN dog)"),
    ("(NP (NN dog))", "(NP dog)", "(NP dog)", "(NP dog)"),
    ("(S (NP (NN dog)))", "(S dog)", "(S dog)", "(S dog)"),
    ("(X (A a) (B b))",) * 4,
    (
        "(X (A a) (B b) (C c))",
        "(X (A a) (@X (B b) (C c)))",
        "(X (@X (A a) (B b)) (C c))",
        "(X (A a) (B b) (C c))",
    ),
    (
        "(X (A a) (B b) (C c) (D d))",
        "(X (A a) (@X (B b) (@X (C c) (D d))))",
        "(X (@X (@X (A a) (B b)) (C c)) (D d))",
        "(X (A a) (B b) (C c) (D d))",
    ),
    (
        "(ROOT (S (NP (NN a)) (VP (VB b))))",
        *["(ROOT (NP a) (VP b))"] * 3,
    ),
    (
        "((A a) (B b) (C c))",
        "( (A a) ( (B b) (C c)))",
        "( ( (A a) (B b)) (C c))",
        "( (A a) (B b) (C c))",
    ),
]


@pytest.mark.parametrize(("tree", "right", "left", "collapsed"), CASES)
def test_binarize(tree: str, right: str, left: str, collapsed: str) -> None:
    assert str(binarize(parse(tree))) == right
    assert str(binarize(parse(tree), "right")) == right
    assert str(binarize(parse(tree), "left")) == left
    assert str(collapse_unary(parse(tree))) == collapsed


def test_a_top_without_label_takes_the_label_below() -> None:
    tree = Tree(None, None, [parse("(S (A a) (B b))")])
    assert binarize(tree).label == collapse_unary(tree).label == "S"


trees = st.recursive(
    st.builds(Tree, st.sampled_from("ABC"), st.integers(0, 99)),
    lambda below: st.builds(
        Tree, st.sampled_from("XYZ"), st.none(), st.lists(below, min_size=1, max_size=5)
    ),
    max_leaves=30,
)


def naive_binarize(tree: Tree, right: bool) -> Tree:
    if tree.is_leaf:
        return tree
    if len(tree.children) == 1:
        below = naive_binarize(tree.children[0], right)
        return Tree(tree.label, below.word, below.children)
    between = "@" + str(tree.label).lstrip("@")
    if right:
        first, rest = tree.children[:1], tree.children[1:]
    else:
        first, rest = tree.children[:-1], tree.children[-1:]
    halves = [
        half[0] if len(half) == 1 else Tree(between, None, half)
        for half in (first, rest)
    ]
    return Tree(tree.label, None, [naive_binarize(half, right) for half in halves])


@given(trees)
def test_binarize_is_what_the_recursion_gives(tree: Tree) -> None:
    assert binarize(tree) == naive_binarize(tree, right=True)
    assert binarize(tree, "left") == naive_binarize(tree, right=False)


@given(trees)
def test_arities_and_words_after(tree: Tree) -> None:
    forms: list[tuple[Tree, Callable[[int], bool]]] = [
        (binarize(tree), lambda arity: arity in (0, 2)),
        (binarize(tree, "left"), lambda arity: arity in (0, 2)),
        (collapse_unary(tree), lambda arity: arity != 1),
    ]
    for form, allowed in forms:
        assert form.words() == tree.words()
        assert all(allowed(len(node.children)) for node in form.postorder())
        assert form.label == tree.label


@pytest.mark.parametrize("change", [binarize, collapse_unary])
@pytest.mark.parametrize("dependents", [1, 2, 3])
def test_dependency_trees_are_refused(
    change: Callable[[Tree], Tree], dependents: int
) -> None:
    tree = Tree("root", "barks", [Tree("nsubj", "dog")] * dependents)
    with pytest.raises(
        DataError,
        match="only trees with words at the leaves.*; found the word 'barks' on a node "
        f"with {dependents} children; usually a dependency tree; use its children",
    ):
        change(tree)


def test_an_unknown_branching_is_refused() -> None:
    with pytest.raises(
        DataError,
        match=r"branching must be 'right' or 'left'; found 'rihgt'; usually a "
        r"misspelling; did you mean 'right'\?",
    ):
        binarize(Tree("NN", "dog"), "rihgt")  # type: ignore[arg-type]
