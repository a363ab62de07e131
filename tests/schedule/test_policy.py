import pytest
from hypothesis import given
from random_graphs import build, graphs, long_chain
from schedule_oracles import Naive, batches_of, greedy_batches

from edbatch.errors import PolicyError
from edbatch.policies import Agenda, Depth, Greedy, StateMachine
from edbatch.schedule import FrontierPolicy, Policy, check_schedule
from edbatch.schedule.examples import chain, tree


class Lowest(FrontierPolicy):
    name = "lowest"

    def choose(self, frontier):
        return int((frontier.sizes > 0).argmax())


class Fixed(FrontierPolicy):
    name = "fixed"

    def __init__(self, chosen):
        self.chosen = chosen

    def choose(self, frontier):
        return self.chosen


@given(graphs())
def test_a_policy_in_python_gives_right_schedules(structure):
    schedule = Lowest().schedule(structure)
    check_schedule(schedule, structure)
    graph = Naive(structure)
    assert batches_of(schedule) == graph.run(lambda done: min(graph.frontier(done)))
    assert schedule.policy == "lowest"


@given(graphs(max_nodes=20))
def test_a_policy_in_python_sees_what_compiled_ones_see(structure):
    class Watching(FrontierPolicy):
        def choose(self, frontier):
            t = next(expected)[0]
            nodes = set(frontier.nodes(t).tolist())
            seen.append((t, frozenset(nodes)))
            assert frontier.sizes[t] == len(nodes)
            done = sum(len(each) for _, each in seen[:-1])
            assert frontier.remaining.sum() == structure.num_nodes - done
            return t

    seen: list[tuple[int, frozenset[int]]] = []
    wanted = greedy_batches(Naive(structure))
    expected = iter(wanted)
    Watching().schedule(structure)
    assert seen == wanted


@pytest.mark.parametrize("chosen", [1, 2, -1, 7])
def test_a_type_that_is_not_on_the_frontier_is_an_error(chosen):
    with pytest.raises(PolicyError, match=f"'fixed' chose type {chosen}, which has no"):
        Fixed(chosen).schedule(tree("(ab)c" if chosen == 2 else "((a)b)c"))


@pytest.mark.parametrize("chosen", [1.0, None, "a"])
def test_a_choice_that_is_no_number_is_an_error(chosen):
    with pytest.raises(
        PolicyError, match=f"chose {chosen!r}, of type .* but types are"
    ):
        Fixed(chosen).schedule(chain("a"))


def test_a_policy_must_define_choose():
    with pytest.raises(PolicyError, match=r"'frontier' does not define choose"):
        FrontierPolicy().schedule(chain("a"))


def test_what_counts_as_a_policy():
    machine = StateMachine(chain("a").type_keys, "base")
    for policy in (Depth(), Agenda(), Greedy(), machine, Lowest()):
        assert isinstance(policy, Policy)
    assert not isinstance(object(), Policy)


def test_no_nodes():
    schedule = Lowest().schedule(build([], [], 2))
    assert schedule.num_batches == 0
    check_schedule(schedule, build([], [], 2))


def test_a_deep_chain():
    structure = long_chain(3000)
    check_schedule(Lowest().schedule(structure), structure)
