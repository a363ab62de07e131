"""Samplers of random graphs, for the environment, for training and for tests.

Each sampler takes a `numpy.random.Generator` first and returns a minibatch of
independent instances; bind the other arguments with `functools.partial` to make a
sampler for `BatchingEnv`.
"""

from collections.abc import Callable, Sequence

import numpy as np

from edbatch.arguments import check_number
from edbatch.errors import PlanError, shown
from edbatch.graph.dataflow_graph import MISSING
from edbatch.graph.node_type import TypeKey
from edbatch.graph.structure import GraphStructure

Sampler = Callable[[np.random.Generator], GraphStructure]


def sample_tree_structure(
    rng: np.random.Generator,
    *,
    instances: int = 8,
    max_leaves: int = 16,
    kinds: int = 1,
) -> GraphStructure:
    """Samples binary trees with a classifier at each root.

    Neighbouring subtrees are joined in random order until one is left.

    Args:
        rng: Random numbers.
        instances: Number of trees.
        max_leaves: Maximum number of leaves of a tree; the minimum is one.
        kinds: Number of types of inner nodes; each node has a random one.

    Returns:
        A graph of the types `leaf`, `classify` and `compose` or `compose0`, ….

    Raises:
        PlanError: A number is out of range.

    Example:
        >>> graph = sample_tree_structure(np.random.default_rng(0), kinds=2)
        >>> [str(key) for key in graph.type_keys]
        ['leaf/0', 'classify/1', 'compose0/2', 'compose1/2']
    """
    _check_sizes("trees", instances=instances)
    _check_sizes("trees", least=1, max_leaves=max_leaves, kinds=kinds)
    names = ["compose"] if kinds == 1 else [f"compose{k}" for k in range(kinds)]
    keys = (
        TypeKey("leaf", "", 0),
        TypeKey("classify", "", 1),
        *(TypeKey(name, "", 2) for name in names),
    )
    trees = []
    for _ in range(instances):
        leaves = int(rng.integers(1, max_leaves + 1))
        nodes: list[tuple[int, list[int]]] = [(0, [])] * leaves
        roots = list(range(leaves))
        while len(roots) > 1:
            place = int(rng.integers(len(roots) - 1))
            nodes.append((2 + int(rng.integers(kinds)), roots[place : place + 2]))
            roots[place : place + 2] = [len(nodes) - 1]
        nodes.append((1, roots))
        trees.append(nodes)
    return join_instances(keys, trees)


def sample_lattice_structure(
    rng: np.random.Generator,
    *,
    instances: int = 8,
    max_characters: int = 40,
    words_per_character: float = 0.27,
    max_words: int = 3,
) -> GraphStructure:
    """Samples word lattices over characters, as in a lattice-LSTM (Zhang, Yang 2018).

    A word reads the character that it begins with. The character that it ends with
    reads the previous character and all words that end there; each character feeds an
    output. The default frequency of words is that of Chinese microblogs with the word
    list of jieba.

    Args:
        rng: Random numbers.
        instances: Number of lattices.
        max_characters: Maximum number of characters of a lattice; the minimum is one.
        words_per_character: Mean number of words per character, before `max_words`
            limits it.
        max_words: Maximum number of words that end at one character.

    Returns:
        A graph of the types `character` (by arity), `word` and `out`.

    Raises:
        PlanError: A number is out of range.

    Example:
        >>> graph = sample_lattice_structure(np.random.default_rng(0), max_words=1)
        >>> [str(key) for key in graph.type_keys]
        ['word/1', 'out/1', 'character/0', 'character/1', 'character/2']
    """
    _check_sizes("lattices", instances=instances, max_words=max_words)
    _check_sizes("lattices", least=1, max_characters=max_characters)
    what = "words_per_character of lattices"
    check_number(PlanError, what, words_per_character, 0)
    arities = range(max_words + 2)
    keys = (
        TypeKey("word", "", 1),
        TypeKey("out", "", 1),
        *(TypeKey("character", "", arity) for arity in arities),
    )
    lattices = []
    for _ in range(instances):
        nodes: list[tuple[int, list[int]]] = []
        characters: list[int] = []
        for place in range(int(rng.integers(1, max_characters + 1))):
            words = min(int(rng.poisson(words_per_character)), max_words)
            read = characters[-1:]
            if place:
                for length in 1 + rng.geometric(0.7, words):
                    first = max(0, place + 1 - int(length))
                    read.append(len(nodes))
                    nodes.append((0, [characters[first]]))
            characters.append(len(nodes))
            nodes.append((2 + len(read), read))
            nodes.append((1, [characters[-1]]))
        lattices.append(nodes)
    return join_instances(keys, lattices)


def sample_dag_structure(
    rng: np.random.Generator,
    *,
    instances: int = 1,
    nodes: int = 20,
    types: int = 3,
    max_arity: int = 3,
    missing: float = 0.1,
    arities: Sequence[int] | None = None,
) -> GraphStructure:
    """Samples random graphs without any pattern; useful for finding bugs.

    Args:
        rng: Random numbers.
        instances: Number of instances.
        nodes: Number of nodes per instance.
        types: Number of types; each has a random arity.
        max_arity: The largest arity.
        missing: Share of operands that are missing; others may occur twice.
        arities: The arity of each type, instead of random ones: all graphs then have
            the same types, as `BatchingEnv` requires.

    Returns:
        The graph.

    Raises:
        PlanError: A number is out of range.

    Example:
        >>> sample_dag_structure(np.random.default_rng(0), nodes=5).num_nodes
        5
    """
    _check_sizes("graphs", instances=instances, nodes=nodes, max_arity=max_arity)
    _check_sizes("graphs", least=1, types=types if arities is None else len(arities))
    check_number(PlanError, "missing of graphs", missing, 0)
    if arities is None:
        arities = [int(each) for each in rng.integers(max_arity + 1, size=types)]
    keys = tuple(TypeKey(f"cell{t}", "", arity) for t, arity in enumerate(arities))
    graphs = []
    for _ in range(instances):
        graph: list[tuple[int, list[int]]] = []
        for node in range(nodes):
            t = int(rng.integers(len(arities)))
            operands = [
                MISSING
                if node == 0 or rng.random() < missing
                else int(rng.integers(node))
                for _ in range(arities[t])
            ]
            graph.append((t, operands))
        graphs.append(graph)
    return join_instances(keys, graphs)


def _check_sizes(what: str, least: int = 0, **sizes: object) -> None:
    for name, value in sizes.items():
        check_number(PlanError, f"{name} of {what}", value, least, whole=True)


def join_instances(
    keys: tuple[TypeKey, ...],
    instances: Sequence[Sequence[tuple[int, Sequence[int]]]],
) -> GraphStructure:
    """Builds a minibatch from instances written as lists.

    Args:
        keys: The types.
        instances: For each instance its nodes in topological order; for each node its
            type, and the nodes of the same instance that it reads, or `MISSING`.

    Returns:
        The graph.

    Raises:
        PlanError: A node has an unknown type, or reads a node that is not before it.

    Example:
        >>> leaf = TypeKey("leaf", "", 0)
        >>> join_instances((leaf,), [[(0, [])], [(0, [])]]).instance_nodes.tolist()
        [1, 1]
    """
    node_type: list[int] = []
    operand_start = [0]
    operand_node: list[int] = []
    for k, nodes in enumerate(instances):
        base = len(node_type)
        for number, (t, operands) in enumerate(nodes):
            _check_node(k, number, t, operands, len(keys))
            node_type.append(t)
            operand_node += [u if u == MISSING else base + u for u in operands]
            operand_start.append(len(operand_node))
    return GraphStructure(
        type_keys=keys,
        node_type=np.array(node_type, np.int32),
        operand_start=np.array(operand_start, np.int32),
        operand_node=np.array(operand_node, np.int32),
        instance_nodes=np.array([len(nodes) for nodes in instances], np.int32),
    )


def _check_node(
    instance: int,
    number: int,
    t: int,
    operands: Sequence[int],
    num_types: int,
) -> None:
    """Rejects a node that would make compiled code read beyond its arrays."""
    where = f"node {number} of instance {instance}"
    if not 0 <= t < num_types:
        raise PlanError(
            f"a node's type is a position among {num_types} types, from 0, but that of"
            f" {where} is {shown(t)}; list its type, too"
        )
    for each in operands:
        if each != MISSING and not 0 <= each < number:
            raise PlanError(
                f"a node reads nodes of its instance that stand before it but {where}"
                f" reads {shown(each)}; list nodes in topological order, from 0"
            )
