import jax
import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb
from edbatch.cell.flops import count_flops, products
from edbatch.data import Tree
from edbatch.models import get_workload


def found(function, *arguments):
    return sorted(products(jax.make_jaxpr(function)(*arguments).jaxpr))


def test_products_of_all_forms():
    vector, matrix = jnp.ones(3), jnp.ones((3, 5))
    stack = jnp.ones((7, 2, 3))
    assert found(lambda x, w: x @ w, vector, matrix) == [((1, 1, 5, 3), 1)]
    assert found(lambda x, w: w.T @ x, vector, matrix) == [((1, 5, 1, 3), 1)]
    assert found(lambda x: x @ x, vector) == [((1, 1, 1, 3), 1)]
    assert found(jnp.matmul, stack, stack.transpose(0, 2, 1)) == [((7, 2, 2, 3), 1)]
    assert found(lambda x, w: jnp.tanh(x) + w, vector, vector) == []


def test_products_inside_other_primitives():
    matrix = jnp.ones((3, 3))

    def scanned(x, w):
        return jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, length=4)[0]

    def chosen(x, w):
        return jax.lax.cond(x[0] > 0, lambda: x @ w, lambda: x)

    product = (1, 1, 3, 3)
    assert found(scanned, jnp.ones(3), matrix) == [(product, 4)]
    assert found(jax.jit(lambda x, w: x @ w), jnp.ones(3), matrix) == [(product, 1)]
    assert found(chosen, jnp.ones(3), matrix) == [(product, 1)]
    nested = jax.make_jaxpr(jax.jit(scanned))(jnp.ones(3), matrix).jaxpr
    assert list(products(nested)) == [(product, 4)]


def graph_of(workload, instances, hidden):
    params = jax.eval_shape(
        lambda key: workload.init_params(key, hidden), jax.random.key(0)
    )
    return eb.batch(workload.model, params=params).graph(instances)


@pytest.mark.parametrize("hidden", [4, 10])
def test_flops_of_a_tree_lstm(hidden):
    #      /\         3 leaves     [H] @ [H, 3H]
    #     /\ c        2 inner      [2H] @ [2H, 5H]
    #    a  b         1 classifier [H] @ [H, 5]
    words = [Tree(word=k) for k in range(3)]
    tree = Tree(children=(Tree(children=words[:2]), words[2]))
    leaf, compose, classify = 3 * hidden**2, 10 * hidden**2, 5 * hidden
    by_hand = 2 * (3 * leaf + 2 * compose + classify)
    graph = graph_of(get_workload("tree-lstm"), [tree, tree], hidden)
    assert count_flops(graph) == 2 * by_hand


def test_flops_of_a_padded_list_count_its_padding():
    #   0 with three children, padded to 4: [4, H] @ [H, H], and its word and their sum
    words = tuple(Tree(word=k) for k in range(1, 4))
    graph = graph_of(
        get_workload("tree-lstm-childsum"), [Tree(word=0, children=words)], 4
    )
    leaf, word, forget, gates, classify = 3 * 16, 4 * 16, 4 * 16, 3 * 16, 5 * 4
    assert count_flops(graph) == 2 * (3 * leaf + word + forget + gates + classify)


def test_flops_of_large_minibatches_do_not_overflow():
    workload = get_workload("tree-lstm")
    trees = workload.sample(np.random.default_rng(0), 3)
    assert count_flops(graph_of(workload, trees, 40_000)) > 2**40
