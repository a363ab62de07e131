"""Loaders: an order independent of threads, resumption, interruption and misuse."""

import json
import signal
import subprocess
import sys
import threading
from itertools import islice, pairwise

import jax
import numpy as np
import pytest
from loaded_data import EndsAtFive
from trees import all_states, encode, make_params, sample_trees

import edbatch as eb
from edbatch.loader.prefetch import THREAD_NAME
from edbatch.policies import Depth

SIZES = eb.Sizes(widths=(4, 16))
LIMIT_S = 30


class Hooked:
    """A policy that calls a function before each schedule."""

    name = "hooked"

    def __init__(self, hook):
        self.hook = hook

    def schedule(self, structure):
        self.hook(structure)
        return Depth().schedule(structure)


@pytest.fixture(scope="module")
def params():
    return make_params()


@pytest.fixture(scope="module")
def batched(params):
    return eb.batch(encode, params=params, sizes=SIZES)


@pytest.fixture(scope="module")
def recordings(batched):
    return batched.record_all(sample_trees(0, 11))


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert not own_threads()


def own_threads():
    return [each for each in threading.enumerate() if THREAD_NAME in each.name]


def places(items):
    return [(item.epoch, item.step, item.index.tolist()) for item in items]


def test_an_epoch_has_each_instance_once_and_the_next_another_order(
    batched, recordings
):
    loader = eb.Loader(batched, recordings, 4)
    assert len(loader) == 3
    first, second = places(loader), places(loader)
    for epoch, found in enumerate((first, second)):
        assert [each[:2] for each in found] == [(epoch, k) for k in range(3)]
        assert sorted(k for each in found for k in each[2]) == list(range(11))
    assert [each[2] for each in first] != [each[2] for each in second]
    assert loader.epoch == 2


def test_a_plan_is_that_of_its_instances(batched, params):
    trees = sample_trees(1, 6)
    for item in eb.Loader(batched, trees, 4):
        hidden, _ = batched.apply(params, item.plan)
        assert len(hidden) == len(item.mask) == len(item.padded_index) == 4
        assert item.mask.sum() == len(item.index)
        assert not hidden[~item.mask].any()
        np.testing.assert_array_equal(
            item.drop_padding(hidden), hidden[: len(item.index)]
        )
        assert item.padded_index[item.mask].tolist() == item.index.tolist()
        for row, k in zip(hidden, item.index, strict=False):
            np.testing.assert_allclose(row, encode(params, trees[k])[0], atol=1e-5)


def test_minibatches_need_not_be_padded(batched, params):
    for item in eb.Loader(batched, sample_trees(1, 6), 4, pad=False):
        hidden, _ = batched.apply(params, item.plan)
        assert len(hidden) == len(item.index) == len(item.padded_index)
        assert item.mask.all()


@pytest.mark.parametrize("grouped", [False, True])
def test_neither_threads_nor_work_ahead_change_the_order(batched, recordings, grouped):
    def order(**settings):
        loader = eb.Loader(
            batched, recordings, 3, seed=7, group_by_size=grouped, **settings
        )
        return places(loader.epochs(3))

    expected = order(prefetch=0)
    assert len(expected) == 12
    for prefetch, threads in ((1, 1), (2, 1), (5, 3)):
        assert order(prefetch=prefetch, threads=threads) == expected


def test_the_seed_decides(batched, recordings):
    one, same, other = (
        places(eb.Loader(batched, recordings, 3, seed=seed)) for seed in (1, 1, 2)
    )
    assert one == same != other


def test_settings_reach_the_order(batched, recordings):
    loader = eb.Loader(batched, recordings, 4, shuffle=False, drop_last=True)
    assert len(loader) == 2
    assert places(loader) == [(0, 0, [0, 1, 2, 3]), (0, 1, [4, 5, 6, 7])]
    loader = eb.Loader(batched, recordings, 4, shuffle=False, group_by_size=True)
    sizes = [recordings[k].num_nodes for item in loader for k in item.index]
    assert all(a <= b for a, b in pairwise(sizes[:8]))


@pytest.mark.parametrize("stop", range(8))
def test_a_saved_state_goes_on_with_what_would_have_come(batched, recordings, stop):
    settings = {"seed": 3, "group_by_size": True, "threads": 2}
    expected = places(eb.Loader(batched, recordings, 4, **settings).epochs(3))
    loader = eb.Loader(batched, recordings, 4, **settings)
    before = places(islice(loader.epochs(), stop))
    state = json.loads(json.dumps(loader.state()))
    resumed = eb.Loader(batched, recordings, 4, **settings, state=state)
    assert before + places(resumed.epochs(3 - resumed.epoch)) == expected
    loader.restore(state)
    assert places(loader.epochs(3 - loader.epoch)) == expected[stop:]


def test_a_loop_that_was_left_is_gone_on_with(batched, recordings):
    loader = eb.Loader(batched, recordings, 4)
    expected = places(eb.Loader(batched, recordings, 4))
    for _ in loader:
        assert own_threads()
        break
    assert not own_threads()
    assert places(loader) == expected[1:]


def test_plans_are_made_while_the_consumer_works(params):
    made = threading.Semaphore(0)
    policy = Hooked(lambda _: made.release())
    batched = eb.batch(encode, policy, params=params, sizes=SIZES, cache_bytes=0)
    loader = eb.Loader(batched, sample_trees(0, 12), 2, prefetch=2)
    items = iter(loader)
    next(items)
    for _ in range(3):  # the plan in use, and two ahead
        assert made.acquire(timeout=LIMIT_S)
    assert not made.acquire(timeout=0.05)
    items.close()


def test_plans_are_made_across_the_border_of_epochs(params):
    made = threading.Semaphore(0)
    policy = Hooked(lambda _: made.release())
    batched = eb.batch(encode, policy, params=params, sizes=SIZES, cache_bytes=0)
    items = eb.Loader(batched, [1, (1, 2)], 2).epochs()
    assert next(items).epoch == 0
    for _ in range(3):
        assert made.acquire(timeout=LIMIT_S)
    assert next(items).epoch == 1
    items.close()


def test_what_the_consumer_waited_is_reported(params):
    slow = threading.Event()
    policy = Hooked(lambda _: slow.wait(0.02))
    batched = eb.batch(encode, policy, params=params, sizes=SIZES, cache_bytes=0)
    loader = eb.Loader(batched, sample_trees(0, 12), 2)
    for _ in loader:
        pass
    assert loader.report.minibatches == 6
    assert loader.report.start_ms >= 20 and loader.wait_ms >= 4 * 20
    assert loader.report.wait_share > 0.5
    slow.set()
    loader = eb.Loader(batched, sample_trees(0, 12), 2)
    for _ in loader:
        threading.Event().wait(0.02)
    assert loader.report.wait_share < 0.5


def test_lists_are_ragged_whatever_is_planned_first(params):
    batched = eb.batch(all_states, params=params, sizes=SIZES)
    trees = [(1, 2), (3, 4), 5, (6, 7)]
    for item in eb.Loader(batched, trees, 2, shuffle=False):
        assert isinstance(batched.apply(params, item.plan), eb.Ragged)


def test_a_loop_under_jit_compiles_few_programs(batched, params, recordings):
    step = jax.jit(lambda params, plan: batched.apply(params, plan)[0].sum())
    loader = eb.Loader(batched, recordings, 4, drop_last=True)
    for item in loader.epochs(3):
        step(params, item.plan)
    assert step._cache_size() <= 3


def test_an_instance_that_cannot_be_recorded_is_named(batched):
    with pytest.raises(TypeError, match="not iterable") as caught:
        eb.Loader(batched, [(1, 2), 3, None], 2)
    assert "this is number 2" in caught.value.__notes__[-1]


def test_an_instance_that_cannot_be_planned_is_named(params):
    def refuse(structure):
        if structure.num_nodes % 2 == 0:
            raise eb.PolicyError("no tree has an even number of nodes")

    @eb.cell
    def again(params, state):
        return state

    def model(params, tree):
        state = encode(params, tree[0])
        return again(params, state) if tree[1] else state

    batched = eb.batch(model, Hooked(refuse), params=params, sizes=SIZES)
    data = [((1, 2), False), (3, False), ((4, (5, 6)), True), (7, False), (8, False)]
    loader = eb.Loader(batched, data, 3, shuffle=False, threads=2)
    with pytest.raises(eb.PolicyError, match="no tree has an even number") as caught:
        list(loader)
    (note,) = caught.value.__notes__
    assert note.startswith("while planning minibatch 0 of epoch 0: instance 2 cannot")
    assert not own_threads()


def test_a_minibatch_that_cannot_be_planned_is_named(params):
    def refuse(structure):
        if len(structure.instance_nodes) > 1:
            raise eb.PolicyError("too many")

    batched = eb.batch(encode, Hooked(refuse), params=params, sizes=SIZES)
    loader = eb.Loader(batched, [1, 2, 3, 4], 2, shuffle=False)
    with pytest.raises(eb.PolicyError) as caught:
        next(iter(loader))
    assert "instances [0, 1], each of which can be" in caught.value.__notes__[0]


@pytest.fixture
def ctrl_c():
    """Python's own SIGINT handler; a shell's background jobs start with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_ends_the_loop_and_its_threads(params):
    waiting = threading.Event()
    go_on = threading.Event()

    def wait(_):
        waiting.set()
        go_on.wait(LIMIT_S)

    batched = eb.batch(encode, Hooked(wait), params=params, sizes=SIZES)
    loader = eb.Loader(batched, sample_trees(0, 12), 2, threads=2)
    main = threading.main_thread().ident

    def press():
        waiting.wait(LIMIT_S)
        threading.Event().wait(0.1)  # until all threads have started
        signal.pthread_kill(main, signal.SIGINT)
        go_on.set()

    thread = threading.Thread(target=press)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        for _ in loader:
            threading.Event().wait(LIMIT_S)
    thread.join()
    assert not own_threads()
    assert sum(len(item.index) for item in loader) == 12  # no minibatch was handed out


def test_a_script_may_end_in_the_midst_of_a_loop():
    script = """
import edbatch as eb, jax.numpy as jnp
double = eb.cell(lambda params, x: params * x)
batched = eb.batch(lambda params, x: double(params, x), params=jnp.float32(2.0))
items = eb.Loader(batched, [1.0, 2.0, 3.0, 4.0], 1, threads=2).epochs()
print(next(items).index.shape)
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        capture_output=True,
        text=True,
        timeout=2 * LIMIT_S,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "(1,)\n", "")


def test_a_second_loop_ends_the_first(batched, recordings):
    loader = eb.Loader(batched, recordings, 4)
    first = iter(loader)
    next(first)
    second = iter(loader)
    assert next(second).step == 1
    with pytest.raises(eb.LoaderError, match="only one loop at a time can run over"):
        next(first)
    second.close()


def test_a_restored_state_ends_the_loop(batched, recordings):
    loader = eb.Loader(batched, recordings, 4)
    start = loader.state()
    items = iter(loader)
    next(items)
    loader.restore(start)
    with pytest.raises(eb.LoaderError, match="the state was restored, or"):
        next(items)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 0}, "batch_size of a loader is a whole number, 1 or more, but"),
        ({"batch_size": -2}, "but this is -2; give another"),
        ({"batch_size": 2.5}, r"1 or more, but this is 2\.5"),
        ({"prefetch": -1}, "prefetch of a loader is a whole number, 0 or more"),
        ({"threads": 0}, "threads of a loader is a whole number, 1 or more"),
        ({"seed": -1}, "seed of a loader is a whole number, 0 or more"),
        ({"seed": "a"}, "but this is 'a'"),
        ({"instances": []}, "needs at least one instance but there is none; usually"),
        (
            {"batch_size": 3, "drop_last": True},
            "but batch_size is 3 and there are 2 instances, so none would be left",
        ),
    ],
)
def test_bad_settings(batched, change, message):
    settings = {"instances": [1, 2], "batch_size": 2} | change
    with pytest.raises(eb.LoaderError, match=message):
        eb.Loader(batched, **settings)


def test_a_negative_number_of_epochs(batched):
    with pytest.raises(eb.LoaderError, match="count of a loader is a whole number, 0"):
        next(eb.Loader(batched, [1], 1).epochs(-1))
    assert list(eb.Loader(batched, [1], 1).epochs(0)) == []


def test_a_minibatch_may_be_larger_than_the_data(batched):
    loader = eb.Loader(batched, [1, 2], 5)
    assert len(loader) == 1
    assert [len(item.index) for item in loader] == [2]


def test_parameters_of_unknown_shapes():
    with pytest.raises(eb.PlanError, match=r"pass params= to eb\.batch, call \.bind"):
        eb.Loader(eb.batch(encode), [1], 1)


def test_a_sample_of_the_data_set_decides_whatever_the_order_is(params):
    always = eb.Compiler(hoisting="always", slices="always")
    trees = sample_trees(0, 11)
    found = []
    for keep in (True, False):
        for seed in (1, 2):
            batched = eb.batch(encode, params=params, compiler=always)
            options = {"fit": True, "seed": seed, "keep": keep}
            with batched.loader(trees, 4, **options) as loader:
                decided = batched.decisions
                assert decided.sample == 4 and decided.widths
                for item in loader:
                    assert item.plan is not None
            assert batched.decisions == decided
            found.append(decided)
    assert len({repr(each) for each in found}) == 1
    fitted = eb.batch(encode, params=params, compiler=always)
    fitted.fit([trees[k] for k in (0, 2, 5, 8)])
    assert fitted.decisions == found[0]


def test_a_loader_without_fit_freezes_nothing(params):
    batched = eb.batch(encode, params=params)
    list(batched.loader(sample_trees(0, 3), 2))
    assert batched.decisions.sample is None


@pytest.mark.parametrize("options", [{}, {"keep": False}, {"workers": 1}])
def test_data_that_stops_an_iteration_is_not_cut(batched, options):
    with pytest.raises(RuntimeError) as caught:
        for _ in eb.Loader(batched, EndsAtFive(), 4, shuffle=False, **options):
            pass
    notes = " ".join(getattr(caught.value, "__notes__", []))
    assert "instance 5" in notes + str(caught.value)


class Endless:
    """Like a Grain data set that repeats."""

    def __len__(self):
        return sys.maxsize

    def __getitem__(self, number):
        return ((1, 2), 3)

    def __repr__(self):
        return "Endless()"


@pytest.mark.parametrize("keep", [True, False])
def test_data_that_repeats_without_end_is_refused(params, keep):
    batched = eb.batch(encode, sizes=SIZES, params=params)
    message = r"this one, Endless\(\), says that it has 9,223,.* leave that out"
    with pytest.raises(eb.LoaderError, match=message):
        batched.loader(Endless(), batch_size=4, keep=keep)


class Filtered:
    """Like a Grain data set from which a filter removed an instance."""

    def __len__(self):
        return 3

    def __getitem__(self, number):
        return None if number == 1 else ((1, 2), 3)


@pytest.mark.parametrize("keep", [True, False])
def test_an_instance_that_a_filter_took_is_refused(params, keep):
    batched = eb.batch(encode, sizes=SIZES, params=params)
    with pytest.raises(eb.LoaderError, match="instance 1 of the data set is None; usu"):
        list(batched.loader(Filtered(), batch_size=3, keep=keep))
