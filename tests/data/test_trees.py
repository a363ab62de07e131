import copy
import gc
import pickle

import pytest

from edbatch.data import DataError, Tree, binarize, collapse_unary

DEPTH = 20_000  # twenty times Python's recursion limit


def nested(depth: int, word: str = "w", arity: int = 2) -> Tree:
    """A tree whose chain of last children is `depth` edges long."""
    tree = Tree("X", word)
    for _ in range(depth):
        tree = Tree("X", None, (Tree("Y", word),) * (arity - 1) + (tree,))
    return tree


#        S
#      /   \
#    NP     VP
#   /  \     |
#  DT   NN   barks
THE_DOG_BARKS = Tree(
    "S",
    children=[
        Tree("NP", children=[Tree("DT", "the"), Tree("NN", "dog")]),
        Tree("VP", "barks"),
    ],
)


def naive_height(tree: Tree) -> int:
    return 1 + max(map(naive_height, tree.children)) if tree.children else 0


def test_the_parts_of_a_binary_node() -> None:
    assert not THE_DOG_BARKS.is_leaf
    assert THE_DOG_BARKS.left.label == "NP"
    assert THE_DOG_BARKS.right == Tree("VP", "barks")
    assert THE_DOG_BARKS.right.is_leaf
    assert isinstance(THE_DOG_BARKS.children, tuple)


def test_postorder_yields_children_first_from_left_to_right() -> None:
    labels = [node.label for node in THE_DOG_BARKS.postorder()]
    assert labels == ["DT", "NN", "NP", "VP", "S"]


def test_fold_hands_results_in_surface_order() -> None:
    def compose(node: Tree, results: list[str]) -> str:
        return f"{node.label}[{' '.join(results)}]"

    folded = THE_DOG_BARKS.fold(lambda leaf: str(leaf.word), compose)
    assert folded == "S[NP[the dog] barks]"


def test_fold_of_a_leaf_is_the_leaf_function() -> None:
    assert Tree("NN", "dog").fold(lambda leaf: leaf.word, lambda _, __: None) == "dog"


def test_counts() -> None:
    assert THE_DOG_BARKS.num_nodes() == 5
    assert THE_DOG_BARKS.height() == naive_height(THE_DOG_BARKS) == 2
    assert THE_DOG_BARKS.words() == ("the", "dog", "barks")
    assert Tree("NN", "dog").height() == 0


def test_words_of_a_dependency_tree_come_parents_first() -> None:
    tree = Tree("root", "barks", [Tree("nsubj", "dog", [Tree("det", "the")])])
    assert tree.words() == ("barks", "dog", "the")


def test_a_word_index_of_zero_is_a_word() -> None:
    assert Tree(None, None, [Tree(None, 0), Tree(None, 3)]).words() == (0, 3)


def test_trees_compare_and_hash_by_value() -> None:
    again = copy.deepcopy(THE_DOG_BARKS)
    assert again == THE_DOG_BARKS and hash(again) == hash(THE_DOG_BARKS)
    assert len({again, THE_DOG_BARKS}) == 1


@pytest.mark.parametrize(
    "other",
    [
        Tree("S", children=[*THE_DOG_BARKS.children, Tree(".", ".")]),
        Tree("S", children=THE_DOG_BARKS.children[::-1]),
        Tree("X", children=THE_DOG_BARKS.children),
        Tree("S", "word", children=THE_DOG_BARKS.children),
        Tree("S", children=[THE_DOG_BARKS.left, Tree("VP", "sleeps")]),
        Tree("S", children=[THE_DOG_BARKS.left, Tree("VBZ", "barks")]),
        Tree("S", children=[Tree("NP", "dogs"), THE_DOG_BARKS.right]),
        "S",
    ],
)
def test_trees_that_differ_anywhere_are_unequal(other: object) -> None:
    assert other != THE_DOG_BARKS


def test_a_tree_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        THE_DOG_BARKS.label = "X"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        del THE_DOG_BARKS.word


def test_str_is_in_brackets_and_repr_is_short() -> None:
    assert str(THE_DOG_BARKS) == "(S (NP (DT the) (NN dog)) (VP barks))"
    assert repr(THE_DOG_BARKS) == f"<Tree {THE_DOG_BARKS}, 5 nodes>"
    assert repr(nested(40)).endswith(" ..., 81 nodes>")
    assert str(Tree(None, None, [Tree(None, 1), Tree(None, 2)])) == "( 1 2)"
    assert str(Tree("root", "barks", [Tree("nsubj", "dogs")])) == (
        "(root barks (nsubj dogs))"
    )


@pytest.mark.parametrize("arity", [1, 2, 3])
def test_no_operation_recurses(arity: int) -> None:
    tree, same = nested(DEPTH, arity=arity), nested(DEPTH, arity=arity)
    other = nested(DEPTH, "other", arity=arity)
    assert tree.height() == DEPTH
    assert tree.num_nodes() == 1 + arity * DEPTH
    assert len(tree.words()) == 1 + (arity - 1) * DEPTH
    assert sum(1 for _ in tree.postorder()) == tree.num_nodes()
    assert tree == same and tree != other
    assert hash(tree) == hash(same)
    assert str(tree).count("(") == tree.num_nodes()
    assert repr(tree).endswith(f"{tree.num_nodes()} nodes>")
    assert pickle.loads(pickle.dumps(tree)) == tree
    assert copy.deepcopy(tree) == tree
    gc.collect()
    del tree, same, other
    gc.collect()


@pytest.mark.parametrize("branching", ["right", "left"])
def test_binarize_does_not_recurse(branching: str) -> None:
    binary = binarize(nested(DEPTH, arity=3), branching)  # type: ignore[arg-type]
    assert binary.num_nodes() == 4 * DEPTH + 1
    assert binarize(nested(DEPTH, arity=1)) == Tree("X", "w")
    assert collapse_unary(nested(DEPTH, arity=1)) == Tree("X", "w")


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("arity", [0, 1, 3])
def test_left_and_right_refuse_a_node_that_is_not_binary(side: str, arity: int) -> None:
    tree = Tree("X", None, [Tree("Y", "w")] * arity)
    with pytest.raises(
        DataError,
        match=rf"left and right need a node with two children; found <Tree .*> with "
        rf"{arity}; usually .* before binarize.*; call binarize\(tree\)",
    ):
        getattr(tree, side)


def test_a_child_must_be_a_tree() -> None:
    with pytest.raises(
        DataError,
        match=r"children of a Tree must be Trees; found 'dog', a str; usually a word "
        r"given as a child; write Tree\(label, word\)",
    ):
        Tree("NN", children=["dog"])  # type: ignore[arg-type]
