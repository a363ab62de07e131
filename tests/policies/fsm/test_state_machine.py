import itertools
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import all_graphs, build, graphs, long_chain
from schedule_oracles import Naive, batches_of, greedy_batches
from smoothed_bound_oracle import best_two, gains_of

from edbatch.envs import sample_dag_structure, sample_lattice_structure
from edbatch.errors import PolicyError
from edbatch.graph import TypeKey
from edbatch.policies import ENCODINGS, Greedy, MachineState, StateMachine
from edbatch.policies.smooth_bound.weights import BoundWeights
from edbatch.schedule import check_schedule
from edbatch.schedule.examples import tree

TREE = tree("(((aa)ba)b)c((aa)b)c")
BY_LETTER = {str(key): t for t, key in enumerate(TREE.type_keys)}


def machine(encoding, table, types=TREE.type_keys):
    """A machine from a table such as {"a": "a", "bc": "b"}."""
    number = {key.cell: k for k, key in enumerate(types)}
    states = tuple(
        MachineState(tuple(number[each] for each in frontier), number[action])
        for frontier, action in table.items()
    )
    return StateMachine(types, encoding, states)


def encoding_of(encoding, frontier, falls):
    """The encoding of the oracle's frontier."""
    present = sorted(frontier)
    if encoding == "fall":
        return tuple(best_two(falls()))
    if encoding == "base":
        return tuple(present)
    ordered = sorted(present, key=lambda t: (-len(frontier[t]), t))
    return tuple(ordered) if encoding == "sort" else (ordered[0], *present)


def oracle(policy, structure):
    """Batches and unseen states of a machine with the graph's own types."""
    graph = Naive(structure)
    weights = policy.weights
    weight = [*(weights.types or [1.0] * structure.num_types), weights.path]
    log2_p = {2: 1, 4: 2, 8: 3, 16: 4}[weights.power]
    table = {state.frontier: state.action for state in policy.states}
    unseen = 0

    def choose(done):
        nonlocal unseen
        frontier = graph.frontier(done)
        falls = partial(gains_of, structure, done, weight, log2_p)
        state = encoding_of(policy.encoding, frontier, falls)
        chosen = table.get(state)
        if chosen in frontier:
            return chosen
        unseen += 1
        if policy.encoding == "fall":
            return state[0]
        return max(frontier, key=lambda t: (graph.ratio(done, t), -t))

    batches = graph.run(choose)
    return batches, unseen if table else 0  # an empty table has no unseen states


def check(policy, structure):
    schedule = policy.schedule(structure)
    check_schedule(schedule, structure)
    assert (batches_of(schedule), schedule.unseen_states) == oracle(policy, structure)
    return schedule


@st.composite
def machines(draw, num_types=3):
    """Machines with random tables, most of them poor policies."""
    symbols = st.integers(0, num_types - 1)
    frontiers = st.lists(symbols, min_size=1, max_size=num_types + 1).map(tuple)
    table = draw(st.dictionaries(frontiers, symbols, max_size=20))
    return StateMachine(
        build([], [], num_types).type_keys,
        draw(st.sampled_from(ENCODINGS)),
        tuple(itertools.starmap(MachineState, table.items())),
    )


@given(machines(), graphs(num_types=3))
def test_random_machines_do_what_their_table_says(policy, structure):
    check(policy, structure)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_all_small_graphs(encoding):
    tables = [{}, {(0,): 0}, {(0, 1): 0, (1, 0): 1, (0, 0, 1): 1, (1,): 1}]
    types = build([], [], 2).type_keys
    for table in tables:
        states = tuple(itertools.starmap(MachineState, table.items()))
        policy = StateMachine(types, encoding, states)
        for structure in all_graphs(3):
            check(policy, structure)


@pytest.mark.parametrize(
    ("encoding", "table"),
    [
        ("base", {"a": "a", "b": "b", "bc": "b", "c": "c"}),
        ("sort", {"a": "a", "b": "b", "cb": "b", "bc": "b", "c": "c"}),
        ("max", {"aa": "a", "bb": "b", "bbc": "b", "cbc": "b", "cc": "c"}),
    ],
)
def test_a_table_for_trees(encoding, table):
    schedule = machine(encoding, table).schedule(TREE)
    check_schedule(schedule, TREE)
    assert schedule.batch_type.tolist() == [BY_LETTER[f"{x}/0"] for x in "abbc"]
    assert schedule.unseen_states == 0
    assert schedule.policy == f"fsm-{encoding}"


def test_without_states_it_is_the_greedy_heuristic():
    policy = StateMachine(TREE.type_keys, "sort")
    schedule = check(policy, TREE)
    assert batches_of(schedule) == batches_of(Greedy().schedule(TREE))
    assert schedule.unseen_states == 0


def test_after_an_unseen_state_the_table_is_used_again():
    # State a is unseen; later the table makes the bad choice of c at {b, c}.
    schedule = check(machine("base", {"b": "b", "bc": "c", "c": "c"}), TREE)
    assert schedule.unseen_states == 1
    assert [TREE.type_keys[t].cell for t in schedule.batch_type] == list("abcbc")


def test_unseen_states_late_in_the_execution():
    # The heads are computed in the middle of the schedule and updated from there.
    schedule = check(machine("base", {"a": "a"}), TREE)
    assert schedule.unseen_states == 3
    assert schedule.num_batches == 4


@pytest.mark.parametrize("action", ["c", "a"])
def test_a_damaged_table_counts_as_unseen(action):
    damaged = machine("base", {"a": action, "b": "a", "bc": "a", "c": "b"})
    schedule = check(damaged, TREE)
    assert schedule.num_batches == 4
    assert schedule.unseen_states == (4 if action == "c" else 3)


def test_no_node_and_one_node():
    policy = machine("sort", {"a": "a"})
    assert check(policy, replace(TREE, **empty())).num_batches == 0
    one = build([0], [[]], 3)
    assert check(StateMachine(one.type_keys, "sort"), one).num_batches == 1


def empty():
    return {
        "node_type": np.zeros(0, np.int32),
        "operand_start": np.zeros(1, np.int32),
        "operand_node": np.zeros(0, np.int32),
        "instance_nodes": np.zeros(1, np.int32),
    }


@pytest.mark.parametrize("table", [{}, {(0,): 0, (1,): 1}])
def test_a_deep_chain(table):
    structure = long_chain(100_000)
    states = tuple(itertools.starmap(MachineState, table.items()))
    policy = StateMachine(structure.type_keys, "sort", states)
    schedule = policy.schedule(structure)
    check_schedule(schedule, structure)
    assert schedule.num_batches == 100_000
    assert schedule.unseen_states == 0


def test_many_types():
    # 150 types on the frontier at once, from the 150th down to the first.
    n = 150
    structure = build(range(n), [[]] * n, n)
    order = [
        MachineState(tuple(range(k + 1)), k) for k in range(n)
    ]  # runs the last type first
    policy = StateMachine(structure.type_keys, "base", tuple(order))
    schedule = policy.schedule(structure)
    check_schedule(schedule, structure)
    assert schedule.batch_type.tolist() == list(reversed(range(n)))
    assert schedule.unseen_states == 0


# ---- binding to a graph with other types or another order of types ----


@given(machines(), graphs(num_types=3), st.permutations(range(3)))
def test_the_order_of_the_graphs_types_does_not_matter(policy, structure, new):
    # The fallback breaks ties by the order of the graph's types, so schedules are
    # compared only where no state was unseen.
    renumbered = replace(
        structure,
        type_keys=tuple(structure.type_keys[new.index(t)] for t in range(3)),
        node_type=np.array(new, np.int32)[structure.node_type],
    )
    expected = policy.schedule(structure)
    found = policy.schedule(renumbered)
    check_schedule(found, renumbered)
    if policy.states and not expected.unseen_states:
        np.testing.assert_array_equal(found.order, expected.order)
        assert found.unseen_states == 0


def test_a_graph_may_lack_types_and_have_known_cells_with_other_arities():
    leaf = TypeKey("leaf", "", 0)
    two, three = TypeKey("join", "p", 2), TypeKey("join", "p", 3)
    policy = machine("base", {}, (TypeKey("other", "", 1), two, leaf))
    policy = replace(policy, states=(MachineState((2,), 2), MachineState((1,), 1)))
    assert policy.bind((leaf, three, two)).type_of.tolist() == [-1, 2, 0, 1]
    #   0 leaf, 1 leaf;  2 join/2 of both;  3 join/3 of 2 and both
    graph = replace(
        build([0, 0, 2, 1], [[], [], [0, 1], [2, 0, 1]], 3),
        type_keys=(leaf, three, two),
    )
    schedule = policy.schedule(graph)
    check_schedule(schedule, graph)
    assert schedule.batch_type.tolist() == [0, 2, 1]
    assert schedule.unseen_states == 1


def test_another_variant_is_allowed_too():
    policy = machine("base", {"a": "a"})
    one = replace(build([0], [[]], 1), type_keys=(TypeKey("a", "", 0, variant=1),))
    assert policy.schedule(one).unseen_states == 1


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (
            TypeKey("aa", "", 0),
            "not trained on 'aa'; .*train one .* did you mean 'a'",
        ),
        (TypeKey("a", "p.q", 0), "not trained on 'a@p.q'; .* known are 'a', 'b', 'c'$"),
    ],
)
def test_an_unknown_cell(key, message):
    graph = replace(build([0, 1], [[], []], 2), type_keys=(TREE.type_keys[0], key))
    with pytest.raises(PolicyError, match=f"this one, fsm-sort, was {message}"):
        machine("sort", {}).schedule(graph)


def test_all_unknown_cells_are_named():
    graph = build([0, 1], [[], []], 2)
    with pytest.raises(PolicyError, match="was not trained on 't0', 't1';"):
        machine("sort", {}).schedule(graph)


def test_a_binding_is_made_once():
    policy = machine("sort", {})
    assert policy.bind(TREE.type_keys) is policy.bind(tuple(TREE.type_keys))


# ---- the encoding by marginal gains ----


@given(
    st.integers(0, 10**6),
    st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.0, 3.0]), min_size=4, max_size=4),
    st.sampled_from([2, 4, 8, 16]),
    st.booleans(),
)
def test_without_states_the_type_of_largest_fall_runs(seed, weight, power, equal):
    rng = np.random.default_rng(seed)
    nodes = int(rng.integers(1, 13))
    structure = sample_dag_structure(rng, instances=3, nodes=nodes, types=3)
    *types, path = weight
    weights = BoundWeights(() if equal else types, path, power)
    policy = StateMachine(structure.type_keys, "fall", weights=weights)
    assert check(policy, structure).unseen_states == 0


@given(
    st.integers(0, 10**6),
    st.dictionaries(
        st.lists(st.integers(0, 2), min_size=1, max_size=2, unique=True).map(tuple),
        st.integers(0, 2),
    ),
)
def test_states_of_two_types(seed, table):
    structure = sample_dag_structure(np.random.default_rng(seed), instances=3, nodes=9)
    states = tuple(itertools.starmap(MachineState, table.items()))
    policy = StateMachine(structure.type_keys, "fall", states)
    check(policy, structure)


@given(st.integers(0, 10**6), st.permutations(range(4)))
def test_fall_does_not_mind_the_order_of_the_graphs_types(seed, new):
    rng = np.random.default_rng(seed)
    structure = sample_dag_structure(rng, instances=3, nodes=10, types=4)
    weights = BoundWeights(rng.choice([0.5, 1.0, 1.0, 2.0], 4), 0.5)
    states = (MachineState((2, 0), 0), MachineState((1, 3), 3))
    policy = StateMachine(structure.type_keys, "fall", states, weights=weights)
    renumbered = replace(
        structure,
        type_keys=tuple(structure.type_keys[new.index(t)] for t in range(4)),
        node_type=np.array(new, np.int32)[structure.node_type],
    )
    expected, found = policy.schedule(structure), policy.schedule(renumbered)
    check_schedule(found, renumbered)
    np.testing.assert_array_equal(found.batch_type, np.array(new)[expected.batch_type])
    np.testing.assert_array_equal(found.order, expected.order)
    assert found.unseen_states == expected.unseen_states


def test_fall_with_types_that_it_does_not_know():
    leaf, two, three = (TypeKey("a", "", k) for k in range(3))
    states = (MachineState((0,), 0),)
    policy = StateMachine(
        (TypeKey("b", "", 0), leaf), "fall", states, weights=BoundWeights((7, 3), 2)
    )
    type_of, weight, log2_p = policy.bind((two, leaf, three))
    assert type_of.tolist() == [-1, 1, 0, 2]
    assert (weight.tolist(), log2_p) == ([1.0, 3.0, 1.0, 2.0], 3)
    graph = replace(
        build([1, 0, 2, 0], [[], [0], [1, 0], [0]], 3), type_keys=(two, leaf, three)
    )
    schedule = policy.schedule(graph)
    check_schedule(schedule, graph)
    assert schedule.batch_type.tolist() == [1, 0, 2]


@pytest.mark.parametrize("nodes", [0, 1])
def test_fall_on_no_node_and_on_one(nodes):
    graph = build([0] * nodes, [[]] * nodes, 3)
    assert check(StateMachine(graph.type_keys, "fall"), graph).num_batches == nodes
    none = replace(graph, instance_nodes=np.array([0, nodes, 0], np.int32))
    assert StateMachine(graph.type_keys, "fall").schedule(none).num_batches == nodes


def test_fall_on_a_deep_chain():
    structure = long_chain(100_000)
    schedule = StateMachine(structure.type_keys, "fall").schedule(structure)
    check_schedule(schedule, structure)
    assert schedule.num_batches == 100_000


# ---- the StateMachine object ----


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_copies_and_threads_schedule_alike(encoding):
    rng = np.random.default_rng(0)
    structures = [sample_lattice_structure(rng, instances=4) for _ in range(8)]
    policy = StateMachine(structures[0].type_keys, encoding)
    copy = pickle.loads(pickle.dumps(policy))
    assert copy == policy
    expected = [copy.schedule(each).batch_type.tolist() for each in structures]
    with ThreadPoolExecutor(4) as pool:
        for schedule, batch_type in zip(
            pool.map(policy.schedule, structures * 4), expected * 4, strict=True
        ):
            assert schedule.batch_type.tolist() == batch_type
    assert pickle.loads(pickle.dumps(policy)) == policy


def test_as_many_weights_as_types():
    with pytest.raises(PolicyError, match="but there are 1 weights and 3 types; give"):
        StateMachine(TREE.type_keys, "fall", weights=BoundWeights((1.0,)))


def test_equality_is_that_of_the_content():
    one = machine("base", {"a": "a", "b": "b"})
    assert one == machine("base", {"b": "b", "a": "a"})
    assert hash(one) == hash(machine("base", {"b": "b", "a": "a"}))
    one.schedule(TREE)
    assert one == machine("base", {"b": "b", "a": "a"})
    assert one != machine("sort", {"a": "a", "b": "b"})
    assert one != machine("base", {"a": "a"})
    assert one != machine("base", {"a": "a", "b": "a"})
    assert one != replace(one, weights=BoundWeights(path=2.0))


@pytest.mark.parametrize("state", [MachineState((3,), 0), MachineState((0,), 3)])
def test_a_state_refers_to_types_that_exist(state):
    with pytest.raises(PolicyError, match="by position, from 0 to 2 here, but there"):
        StateMachine(TREE.type_keys, "base", (state,))


def test_negative_positions_are_refused():
    with pytest.raises(PolicyError, match="by position, from 0 to 2 here"):
        StateMachine(TREE.type_keys, "base", (MachineState((-1,), 0),))


def test_an_unknown_encoding_is_refused():
    with pytest.raises(
        PolicyError, match="an encoding is one of base, max, sort, fall but"
    ):
        StateMachine(TREE.type_keys, "bsae")


def test_greedy_oracle_agrees_with_the_fallback():
    assert oracle(StateMachine(TREE.type_keys, "max"), TREE)[0] == greedy_batches(
        Naive(TREE)
    )
