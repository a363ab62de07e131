"""Tests compiling ahead during calls: they do not wait, and nothing compiles twice."""

import threading

import pytest
from tiered_runs import PARAMS, note_tier, tier_of
from trees import assert_equal, encode, sample_trees

import edbatch as eb
from edbatch.compilation.settings import REFINE_AFTER

pytestmark = pytest.mark.usefixtures("quick_compiles")


class Gated:
    """A function whose fine program is compiled only after a gate opens.

    Attributes:
        function: The function of `eb.jit`.
        seen: The tiers that were traced.
        tracing: Set once the fine program is being traced.
        gate: Opens the gate.
    """

    def __init__(self, batched, fails=0):
        self.seen, self.fails = [], fails
        self.tracing, self.gate = threading.Event(), threading.Event()

        def gated(params, plan):
            note_tier(self.seen, plan)
            if tier_of(plan) == "fine":
                self.tracing.set()
                assert self.gate.wait(60)
                if self.seen.count("fine") <= self.fails:
                    raise ValueError("no such program")
            return batched.apply(params, plan)[0]

        self.function = eb.jit(gated)

    def start(self, plan):
        """Starts `warm_up` in a thread and returns the thread."""
        thread = threading.Thread(target=self.function.warm_up, args=(PARAMS, plan))
        thread.start()
        return thread


def test_calls_go_on_while_another_thread_warms_up(auto, batched, plan):
    gated = Gated(batched)
    thread = gated.start(plan)
    assert gated.tracing.wait(60)
    returned = []  # in a separate thread, so that a call that waits fails the test

    def call():
        for _ in range(2 * REFINE_AFTER):
            returned.append(gated.function(PARAMS, plan))

    calls = threading.Thread(target=call)
    calls.start()
    calls.join(30)
    went_on = not calls.is_alive() and thread.is_alive()
    gated.gate.set()
    thread.join()
    calls.join()
    assert went_on and gated.seen == ["fine", "coarse"]
    assert_equal(gated.function(PARAMS, plan), returned[0])
    assert eb.wait_for_compilations(60) and gated.seen == ["fine", "coarse"]


@pytest.mark.parametrize("block", [True, False])
def test_warm_up_compiles_whatever_the_stance(auto, block):
    """A separate program packs the parameters during the warm-up."""
    own, trees = eb.batch(encode), sample_trees(2, 5)
    with eb.set_stance("fail_on_compile"):
        assert own.warm_up(trees, [5], params=PARAMS, block=block).wait(60)
        found = own(PARAMS, trees)
        with pytest.raises(eb.CompilationError):  # this thread no longer warms up
            eb.jit(lambda x: x)(1.0)
    assert_equal(found, own(PARAMS, trees))


@pytest.mark.parametrize("begun", [True, False])
def test_warm_up_waits_for_what_the_background_compiles(auto, batched, plan, begun):
    gated, other = Gated(batched), Gated(batched)
    if not begun:  # the thread has another program to compile first
        other.function.warm_up_in_background(PARAMS, plan)
        assert other.tracing.wait(60)
    gated.function.warm_up_in_background(PARAMS, plan)
    if begun:
        assert gated.tracing.wait(60)
    thread = gated.start(plan)
    gated.gate.set()
    other.gate.set()
    thread.join()
    assert eb.wait_for_compilations(60) and gated.seen == ["fine"]
    with eb.set_stance("fail_on_compile"):
        gated.function(PARAMS, plan)


def test_warm_up_in_the_background_of_what_is_warmed_up(auto, batched, plan):
    gated = Gated(batched)
    thread = gated.start(plan)
    assert gated.tracing.wait(60)
    handle = gated.function.warm_up_in_background(PARAMS, plan)
    assert not handle.done
    gated.gate.set()
    thread.join()
    assert handle.wait(60) and eb.wait_for_compilations(60)
    assert gated.seen == ["fine"]


def test_a_warm_up_that_nobody_waits_for_tells_of_its_failure(
    auto, batched, plan, caplog
):
    gated = Gated(batched, fails=1)
    gated.gate.set()
    with caplog.at_level("WARNING", logger="edbatch"):
        gated.function.warm_up_in_background(PARAMS, plan)
        assert eb.wait_for_compilations(60)
        for _ in range(2 * REFINE_AFTER):
            gated.function(PARAMS, plan)
        assert eb.wait_for_compilations(60)
    [warning] = caplog.records
    assert "no such program" in warning.message
    assert gated.seen == ["fine", "coarse"]


@pytest.mark.parametrize("how", ["call", "warm_up", "warm_up_in_background"])
def test_after_a_failure_what_is_asked_for_compiles_afresh(auto, batched, plan, how):
    gated = Gated(batched, fails=2)
    gated.gate.set()
    coarse = gated.function(PARAMS, plan)
    gated.function.warm_up_in_background(PARAMS, plan)
    assert eb.wait_for_compilations(60)
    with eb.use_tiers("fine"):
        for fails in (True, False):
            if fails:
                with pytest.raises(ValueError, match="no such program"):
                    _ask(gated.function, how, plan)
            else:
                _ask(gated.function, how, plan)
    assert gated.seen == ["coarse", "fine", "fine", "fine"]
    with eb.set_stance("fail_on_compile"):
        assert_equal(gated.function(PARAMS, plan), coarse)


def _ask(function, how, plan):
    if how == "call":
        function(PARAMS, plan)
    elif how == "warm_up":
        function.warm_up(PARAMS, plan)
    else:
        assert function.warm_up_in_background(PARAMS, plan).wait(60)


def test_the_end_of_a_sample_is_warmed_up():
    """The sample's last minibatch is short, and has a type that no other one has."""

    @eb.cell
    def common(params, x):
        return params * x

    @eb.cell
    def rare(params, x):
        return params - x

    def model(params, number):
        return (rare if number > 8 else common)(params, float(number))

    batched = eb.batch(model, params=2.0)
    batched.warm_up([1, 2, 3, 4, 9], [2], params=2.0)
    with eb.set_stance("fail_on_compile"):
        assert batched(2.0, [9, 1]).tolist() == [-7, 2]
