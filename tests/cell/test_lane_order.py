"""Orders of lanes, against all permutations."""

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from edbatch.cell.lane_order import Wish, is_fulfilled, order_lanes


def wish(block, numbers, reader=None, elements=1):
    readers = () if reader is None else tuple((reader, k) for k in range(len(numbers)))
    return Wish(tuple((block, k) for k in numbers), readers, elements)


def fulfilled(wishes, orders):
    return sum(each.elements for each in wishes if is_fulfilled(each, orders))


def test_without_wishes_lanes_stay():
    assert order_lanes({"a": 3, "b": 1}, [], []) == {"a": (0, 1, 2), "b": (0,)}


def test_gates_that_are_squashed_alike_stand_together():
    sigmoid = wish("gates", [0, 1, 3], reader="sigmoid")
    orders = order_lanes({"gates": 4, "sigmoid": 3}, [], [sigmoid])
    assert set(orders["gates"][:3]) == {0, 1, 3} or set(orders["gates"][1:]) == {
        0,
        1,
        3,
    }
    assert is_fulfilled(sigmoid, orders)


def test_two_blocks_agree_in_their_order():
    wishes = [
        wish("x", [0, 2], reader="sum"),
        wish("h", [2, 0], reader="sum"),
        wish("x", [1, 2]),
    ]
    orders = order_lanes({"x": 3, "h": 3, "sum": 2}, [], wishes)
    assert fulfilled(wishes, orders) == 3


def test_two_lanes_of_a_block_cannot_share_a_track():
    wishes = [
        wish("a", [0, 1], reader="b", elements=5),
        wish("a", [1, 0], reader="b", elements=2),
    ]
    orders = order_lanes({"a": 2, "b": 2}, [], wishes)
    assert fulfilled(wishes, orders) == 5


def test_the_order_of_a_fixed_block_decides():
    backwards = wish("state", [2, 1, 0], reader="squashed")
    orders = order_lanes({"state": 3, "squashed": 3}, ["state"], [backwards])
    assert orders == {"state": (0, 1, 2), "squashed": (2, 1, 0)}
    gap = wish("state", [0, 2], reader="squashed")
    orders = order_lanes({"state": 3, "squashed": 2}, ["state"], [gap])
    assert not is_fulfilled(gap, orders)


@given(
    st.lists(
        st.tuples(
            st.sets(st.integers(0, 4), min_size=2, max_size=4), st.integers(1, 9)
        ),
        max_size=6,
    )
)
def test_as_many_elements_as_any_order_of_one_block(sets):
    wishes = [wish("a", sorted(each), elements=n) for each, n in sets]
    best = max(fulfilled(wishes, {"a": each}) for each in permutations(range(5)))
    assert fulfilled(wishes, order_lanes({"a": 5}, [], wishes)) == best


@given(
    st.lists(
        st.tuples(
            st.sets(st.integers(0, 3), min_size=2, max_size=3), st.integers(1, 9)
        ),
        min_size=1,
        max_size=3,
    )
)
def test_as_many_elements_as_any_order_of_a_block_and_its_readers(sets):
    sizes = {"a": 4} | {k: len(each) for k, (each, _) in enumerate(sets)}
    wishes = [
        wish("a", sorted(each), reader=k, elements=n)
        for k, (each, n) in enumerate(sets)
    ]
    orders = order_lanes(sizes, [], wishes)
    best = max(
        sum(
            each.elements
            for each in wishes
            if is_fulfilled(Wish(each.lanes, (), 0), {"a": order})
        )
        for order in permutations(range(4))
    )
    assert fulfilled(wishes, orders) == best
