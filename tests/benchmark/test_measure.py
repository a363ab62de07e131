import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from edbatch.benchmark.compile_counter import count_compiles
from edbatch.benchmark.differences import max_abs_error, max_relative_error
from edbatch.benchmark.measure import (
    FirstRuns,
    Reference,
    alternate,
    gc_frozen,
    noise_percent,
    ratio,
    typical,
    warm_up,
)
from edbatch.benchmark.peak import measure_product


class Fake:
    """A system that logs its calls."""

    about = "a test"

    def __init__(self, name, log, slip=0.0):
        self.name, self.log, self.slip = name, log, slip
        self.program = jax.jit(lambda x: x + 1)

    def record(self, instances):
        self.log.append((self.name, "record", instances))
        return instances

    def plan(self, recordings):
        self.log.append((self.name, "plan", recordings))
        return np.asarray(recordings, np.float32)

    def forward(self, plan):
        self.log.append((self.name, "forward", plan.tolist()))
        return self.program(plan)

    def train(self, plan):
        self.log.append((self.name, "train", plan.tolist()))
        return plan.sum(), {"x": 2 * plan + self.slip}

    def results(self, plan, outcome):
        return [each + self.slip for each in np.asarray(outcome)]


def test_warm_up_counts_compiles_and_errors():
    minibatches = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0, 7.0]]
    references = [
        Reference([np.float32(x + 1) for x in each], {"x": 2 * np.float32(each)})
        for each in minibatches
    ]
    with count_compiles() as count:
        right = warm_up(Fake("a", []), minibatches, references, count)
        wrong = warm_up(Fake("b", [], slip=0.25), minibatches, references, count)
        silent = warm_up(Fake("c", []), minibatches, None, count)
        trained = warm_up(
            Fake("d", [], slip=0.25), minibatches, references, count, train=True
        )
    assert right.forward.compiles.tolist() == [1, 0, 1]  # once per length
    assert right.forward.num_compiles == 2
    assert right.forward.max_error == 0.0
    assert wrong.forward.max_error == 0.25
    assert silent.forward.max_error is None
    assert right.forward.first_ms.shape == (3,)
    assert (right.forward.first_ms > 0).all()
    assert right.train is None
    assert trained.train.max_error == 0.25 / 4  # of the first minibatch
    assert trained.train.num_compiles == 0


def test_systems_take_turns_on_each_minibatch():
    log = []
    systems = [Fake(name, log) for name in "abc"]
    minibatches = [[1.0], [2.0]]
    with count_compiles() as count:
        warm = [warm_up(each, minibatches, None, count) for each in systems]
    log.clear()
    ticks = []
    samples = alternate(systems, warm, minibatches, 2, lambda: ticks.append(1))
    forwards = [(name, what[0]) for name, step, what in log if step == "forward"]
    assert forwards == [
        *(("a", 1.0), ("b", 1.0), ("c", 1.0)),
        *(("a", 2.0), ("b", 2.0), ("c", 2.0)),
        *(("b", 1.0), ("c", 1.0), ("a", 1.0)),
        *(("b", 2.0), ("c", 2.0), ("a", 2.0)),
    ]
    assert [step for _, step, _ in log] == ["record", "plan", "forward"] * 12
    assert len(ticks) == 12
    for each in samples:
        for times in (each.record_ms, each.plan_ms, each.forward_ms):
            assert times.shape == (2, 2)
            assert (times > 0).all()


def test_statistics():
    samples = np.array([[1.0, 2.0, 90.0], [10.0, 20.0, 30.0]])
    assert typical(samples) == (2 + 20) / 2
    assert ratio(samples, samples / 4) == 4
    assert ratio(samples, samples * np.array([1.0, 0.5, 0.1])) == 2
    assert noise_percent(np.full((2, 3), 7.0)) == 0


def test_value_and_gradient_are_timed_on_request():
    log = []
    system = Fake("a", log)
    with count_compiles() as count:
        warm = warm_up(system, [[1.0]], None, count, train=True)
    log.clear()
    [samples] = alternate([system], [warm], [[1.0]], 2, train=True)
    steps = ["record", "plan", "forward", "train"]
    assert [step for _, step, _ in log] == steps * 2
    assert samples.train_ms.shape == (1, 2)
    assert (samples.train_ms > 0).all()


def test_seconds_to_compile_are_those_of_runs_that_compiled():
    first = FirstRuns(np.array([3000.0, 500.0]), np.array([1, 0]), None)
    assert first.compile_s(np.array([[900.0, 1000.0, 9000.0], [1.0, 1.0, 1.0]])) == 2


@pytest.mark.parametrize(
    ("found", "expected", "error"),
    [
        ([2.0, 4.0], [2.0, 4.0], 0.0),
        ([2.0, 4.0], [1.0, 4.0], 0.25),
        ([0.0], [0.0], 0.0),
        ([1.0], [0.0], np.inf),
        ([np.nan], [1.0], np.inf),
    ],
)
def test_errors_of_gradients_are_relative_to_the_largest_number(found, expected, error):
    exact = {"other": np.ones(2), "x": np.array(expected)}
    assert max_relative_error({**exact, "x": np.array(found)}, exact) == error


@pytest.mark.parametrize(
    ("found", "expected", "error"),
    [
        ([1.0, 2.0], [1.0, 2.5], 0.5),
        ([np.nan], [np.nan], 0.0),
        ([np.nan], [0.0], np.inf),
        ([np.inf], [np.inf], 0.0),
        ([np.inf], [0.0], np.inf),
        ([], [], 0.0),
    ],
)
def test_max_abs_error(found, expected, error):
    one, other = np.array(found, np.float32), np.array(expected, np.float32)
    assert max_abs_error([{"x": one}], [{"x": other}]) == error


def test_max_abs_error_looks_at_every_instance_and_output():
    right = [{"x": np.zeros(3), "y": [np.zeros(2)]} for _ in range(3)]
    for k in range(3):
        wrong = [{"x": np.zeros(3), "y": [np.zeros(2)]} for _ in range(3)]
        wrong[k]["y"][0][1] = 1e-3
        assert max_abs_error(wrong, right) == 1e-3


def test_max_abs_error_needs_one_structure():
    with pytest.raises(AssertionError, match="structure"):
        max_abs_error([np.zeros(2)], [np.zeros(2), np.zeros(2)])
    with pytest.raises(AssertionError, match="shape"):
        max_abs_error([np.zeros(2)], [np.zeros(1)])


def test_compiles_are_counted_inside_the_context_only():
    one = jnp.float32(1.0)  # made here: a process's first is itself compiled

    def compile_one(number):
        jax.jit(lambda x: x * number).lower(one).compile()

    with count_compiles() as count:
        compile_one(2.0)
        assert count.programs == 1
        with count_compiles() as inner:
            compile_one(3.0)
        compile_one(4.0)
    compile_one(5.0)
    assert (count.programs, inner.programs) == (3, 1)


def test_a_product_is_measured():
    assert 0 < measure_product((1, 8, 8, 8), seed=0) < np.inf


def test_what_is_there_is_hidden_from_the_collector_meanwhile():
    frozen = gc.get_freeze_count()
    with gc_frozen():
        assert gc.get_freeze_count() > frozen
    assert gc.get_freeze_count() == 0
    gc.freeze()  # as the conftest does before each test file
