"""The tree, the type that readers and samplers of trees return."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar, final

from edbatch.errors import DataError, shown

Result = TypeVar("Result")

_REPR_TOKENS = 12


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tree:
    """A node and its subtrees; immutable, compared by value.

    Constituency trees have words only at their leaves; dependency trees have a word at
    every node. No method recurses, so a tree may be as deep as memory allows.

    Attributes:
        label: The category, part of speech, sentiment or dependency relation.
        word: The token, or its index once a vocabulary is applied.
        children: The nodes below, in surface order; any iterable is accepted.

    Raises:
        DataError: A child is not a `Tree`.

    Example:
        >>> tree = Tree("NP", children=[Tree("DT", "the"), Tree("NN", "dog")])
        >>> tree.left.word, tree.is_leaf, tree.height()
        ('the', False, 1)
        >>> tree.fold(lambda leaf: 1, lambda node, results: sum(results))
        2
        >>> print(tree)
        (NP (DT the) (NN dog))
    """

    label: str | None = None
    word: str | int | None = None
    children: "tuple[Tree, ...]" = ()

    def __post_init__(self) -> None:
        if type(self.children) is not tuple:
            object.__setattr__(self, "children", tuple(self.children))
        for child in self.children:
            if type(child) is not Tree:
                raise DataError(
                    f"the children of a Tree must be Trees; found {shown(child)}, a "
                    f"{type(child).__name__}; usually a word given as a child; write "
                    f"Tree(label, word) for a leaf"
                )

    @property
    def is_leaf(self) -> bool:
        """Whether the node has no children."""
        return not self.children

    @property
    def left(self) -> "Tree":
        """The first child of a binary node; raises `DataError` for other nodes."""
        if len(self.children) != 2:
            raise self._not_binary()
        return self.children[0]

    @property
    def right(self) -> "Tree":
        """The second child of a binary node; raises `DataError` for other nodes."""
        if len(self.children) != 2:
            raise self._not_binary()
        return self.children[1]

    def postorder(self) -> "Iterator[Tree]":
        """Yields every node, children before their parent, left to right.

        Example:
            >>> tree = Tree("NP", children=[Tree("DT", "the"), Tree("NN", "dog")])
            >>> [node.label for node in tree.postorder()]
            ['DT', 'NN', 'NP']
        """
        order: list[Tree] = []
        stack = [self]
        while stack:
            node = stack.pop()
            order.append(node)
            stack += node.children
        # Parents first and right to left, so its reverse is a postorder.
        return reversed(order)

    def fold(
        self,
        leaf: "Callable[[Tree], Result]",
        compose: "Callable[[Tree, list[Result]], Result]",
    ) -> Result:
        """Computes a value bottom-up, like a recursion over the tree.

        Args:
            leaf: Computes the value of a leaf.
            compose: Computes the value of an inner node from the node and the values
                of its children, which are in surface order.

        Returns:
            The value of the root.

        Example:
            >>> tree = Tree("NP", children=[Tree("DT", "the"), Tree("NN", "dog")])
            >>> tree.fold(lambda leaf: leaf.word, lambda node, words: " ".join(words))
            'the dog'
        """
        return self.fold_all(leaf, compose)[-1]

    def fold_all(
        self,
        leaf: "Callable[[Tree], Result]",
        compose: "Callable[[Tree, list[Result]], Result]",
    ) -> list[Result]:
        """Computes a value for every node bottom-up.

        Args:
            leaf: As for `fold`.
            compose: As for `fold`.

        Returns:
            The values of all nodes, children before their parent.

        Example:
            >>> tree = Tree("NP", children=[Tree("DT", "the"), Tree("NN", "dog")])
            >>> tree.fold_all(lambda leaf: 1, lambda node, ones: sum(ones))
            [1, 1, 2]
        """
        found: list[Result] = []
        open_values: list[Result] = []  # of nodes whose parent is still to come
        for node in self.postorder():
            arity = len(node.children)
            if arity:
                value = compose(node, open_values[-arity:])
                del open_values[-arity:]
            else:
                value = leaf(node)
            open_values.append(value)
            found.append(value)
        return found

    def num_nodes(self) -> int:
        """Counts the nodes, leaves and inner nodes."""
        return sum(1 for _ in self.postorder())

    def height(self) -> int:
        """Counts the edges from the root to the deepest leaf; 0 for a leaf."""
        return self.fold(lambda _: 0, lambda _, heights: 1 + max(heights))

    def words(self) -> tuple[str | int, ...]:
        """Lists the words, parents first; for a constituency tree in surface order.

        Nodes without a word are skipped.
        """
        found: list[str | int] = []
        stack = [self]
        while stack:
            node = stack.pop()
            if node.word is not None:
                found.append(node.word)
            stack += node.children[::-1]
        return tuple(found)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tree):
            return NotImplemented
        pairs = [(self, other)]
        while pairs:
            one, two = pairs.pop()
            if one is two:
                continue
            if (one.label, one.word, len(one.children)) != (
                two.label,
                two.word,
                len(two.children),
            ):
                return False
            pairs += zip(one.children, two.children, strict=True)
        return True

    def __hash__(self) -> int:
        def compose(node: Tree, hashes: list[int]) -> int:
            return hash((node.label, node.word, *hashes))

        return self.fold(lambda node: compose(node, []), compose)

    def __str__(self) -> str:
        return _joined(_bracket_tokens(self))

    def __repr__(self) -> str:
        tokens = _bracket_tokens(self)
        shown = _joined(islice(tokens, _REPR_TOKENS))
        dots = "" if next(tokens, None) is None else " ..."
        return f"<Tree {shown}{dots}, {self.num_nodes()} nodes>"

    def __reduce__(self) -> tuple[object, ...]:
        nodes = list(self.postorder())
        arguments = (
            [node.label for node in nodes],
            [node.word for node in nodes],
            [len(node.children) for node in nodes],
        )
        return _from_postorder, arguments

    def _not_binary(self) -> DataError:
        return DataError(
            f"left and right need a node with two children; found {shown(self)} with "
            f"{len(self.children)}; usually a tree as read, before binarize, or a "
            "leaf; call binarize(tree) and test is_leaf first, or use children"
        )


def _from_postorder(
    labels: Sequence[str | None],
    words: Sequence[str | int | None],
    arities: Sequence[int],
) -> Tree:
    """Rebuilds a tree from its nodes in postorder, for unpickling."""
    stack: list[Tree] = []
    for label, word, arity in zip(labels, words, arities, strict=True):
        first = len(stack) - arity
        children = tuple(stack[first:])
        del stack[first:]
        stack.append(Tree(label, word, children))
    return stack[0]


def _bracket_tokens(tree: Tree) -> Iterator[str]:
    stack: list[Tree | None] = [tree]  # None stands for a closing bracket
    while stack:
        node = stack.pop()
        if node is None:
            yield ")"
            continue
        parts = [str(part) for part in (node.label, node.word) if part is not None]
        if node.is_leaf and node.label is None and parts:
            yield parts[0]
            continue
        yield "(" + " ".join(parts)
        stack.append(None)
        stack += node.children[::-1]


def _joined(tokens: Iterator[str]) -> str:
    spaced = (token if token == ")" else " " + token for token in tokens)
    return "".join(spaced).removeprefix(" ")
