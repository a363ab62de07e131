"""A small tree model, and `record_one`, which records one instance."""

import jax.numpy as jnp

import edbatch as eb
from edbatch.graph import TypeTable, record
from edbatch.graph.parameter_structure import abstract


@eb.cell
def leaf(params, word):
    return params["table"][word]


@eb.cell
def join(params, left, right):
    return jnp.tanh(left @ params["w"] + right)


@eb.cell
def halves(vector):
    return vector[:2], vector[2:]


PARAMS = {"table": jnp.ones((5, 4)), "w": jnp.ones((4, 4)), "layers": [{"w": 1.0}] * 2}


def tree_model(params, tree):
    if isinstance(tree, int):
        return leaf(params, tree)
    return join(params, *(tree_model(params, each) for each in tree))


def record_one(model, instance, params=PARAMS):
    return record(model, TypeTable(abstract(params)), [instance])


@eb.cell(padded=("items",))
def pad_sum(items, mask):
    return jnp.where(mask[:, None], items, 0).sum(0)
