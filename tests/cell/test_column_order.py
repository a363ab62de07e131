"""Orders of the columns of wide products, against all permutations."""

from itertools import permutations

import jax
from hypothesis import given
from hypothesis import strategies as st
from packed_cells import assert_packed, normal

from edbatch.cell.column_order import Adjacency, best_order


def side_by_side(columns, order):
    places = sorted(order.index(each) for each in columns)
    return places[-1] - places[0] == len(places) - 1


def saved(wanted, order):
    return sum(each.elements for each in wanted if side_by_side(each.columns, order))


def test_without_readers_columns_stay():
    assert best_order(3, []) == [0, 1, 2]


def test_the_larger_of_two_that_exclude_each_other():
    wanted = [
        *(Adjacency(frozenset({0, k}), elements) for k, elements in ((1, 2), (3, 1))),
        Adjacency(frozenset({0, 2}), 3),
    ]
    assert saved(wanted, best_order(4, wanted)) == 5


@given(
    st.lists(
        st.tuples(
            st.frozensets(st.integers(0, 4), min_size=2, max_size=4), st.integers(1, 9)
        ),
        max_size=6,
    )
)
def test_as_many_elements_as_any_order(sets):
    wanted = [Adjacency(*each) for each in sets]
    best = max(saved(wanted, each) for each in permutations(range(5)))
    order = best_order(5, wanted)
    assert sorted(order) == list(range(5))
    assert saved(wanted, order) == best


def test_factored_weights_read_one_slice():
    def cell(params, x):
        a, b, c = (x @ params[f"A{k}"] for k in range(3))
        return a @ params["B0"] + c @ params["B2"], b

    params = {f"A{k}": normal(k, 5, 4) for k in range(3)}
    params |= {f"B{k}": normal(k, 4, 6) for k in (0, 2)}
    packed = assert_packed(cell, params, normal(7, 5))
    assert packed.after.num_products == 2
    program = jax.make_jaxpr(packed.run)(packed.pack(params), normal(7, 5))
    assert "concatenate" not in [each.primitive.name for each in program.eqns]
