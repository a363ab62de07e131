"""Worker processes: same minibatches as without them, errors, and no leftovers."""

import gc
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import subprocess
import sys
import threading
from itertools import islice

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loaded_data import Clients, Failing, Opened, Trees, double, replace_word
from pickled_models import gains, of_all_kinds
from trees import all_states, encode, make_params, sample_trees

import edbatch as eb
from edbatch.errors import LoaderError
from edbatch.loader import processes
from edbatch.loader.prefetch import THREAD_NAME
from edbatch.loader.processes import PROCESS_NAME
from edbatch.loader.worker import Task, WorkerTraceback

SIZES = eb.Sizes(widths=(4, 16))
LIMIT_S = 60


@pytest.fixture(scope="module")
def params():
    return make_params()


@pytest.fixture(scope="module")
def fork_server():
    """A fork server that has already imported the modules that workers need."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["edbatch.loader.worker"])
    multiprocessing.forkserver.ensure_running()
    yield context
    multiprocessing.forkserver._forkserver._stop()


@pytest.fixture(autouse=True)
def quick_workers(request, fork_server, monkeypatch):
    """Forks workers from `fork_server`, which saves seconds of imports per worker.

    A test with the fixture `spawned` starts workers as users do.
    """
    if "spawned" not in request.fixturenames:
        monkeypatch.setattr(processes, "get_context", lambda method: fork_server)


@pytest.fixture
def spawned():
    """Starts workers as fresh processes, as users do; see `quick_workers`."""


@pytest.fixture(autouse=True)
def nothing_is_left(quick_workers):
    files = len(os.listdir("/proc/self/fd"))
    yield
    gc.collect()
    assert not own_processes()
    assert not [each for each in threading.enumerate() if THREAD_NAME in each.name]
    # The first process opens a pipe that multiprocessing's resource tracker keeps.
    assert len(os.listdir("/proc/self/fd")) <= files + 2


def own_processes():
    found = multiprocessing.active_children()
    return [each for each in found if PROCESS_NAME in each.name]


def new_batched(model, params):
    return eb.batch(model, params=params, sizes=SIZES)


def facts(loader, epochs=2):
    """Everything a loop over a loader yields: positions, arrays of plans, and types."""
    items = list(loader.epochs(epochs))
    types = loader.batched.types
    return (
        [(item.epoch, item.step, item.index.tolist()) for item in items],
        [[np.asarray(x).tolist() for x in jax.tree.leaves(e.plan)] for e in items],
        types.keys,
        types.avals,
    )


def kinds_data():
    rng = np.random.default_rng(0)
    lists = [rng.integers(1, 9, rng.integers(1, 5)).tolist() for _ in range(11)]
    return [tuple(each) for each in lists]


@pytest.mark.parametrize(
    ("model", "make", "data"),
    [
        (encode, make_params, sample_trees(0, 11)),
        (all_states, make_params, Trees(11)),
        (of_all_kinds, gains, kinds_data()),
    ],
    ids=["trees", "data set", "all kinds"],
)
@pytest.mark.parametrize("keep", [True, False])
def test_workers_change_nothing(model, make, data, keep):
    settings = {"seed": 3, "keep": keep}
    here = eb.Loader(new_batched(model, make()), data, 3, **settings)
    expected = facts(here)
    batched = new_batched(model, make())
    with eb.Loader(batched, data, 3, **settings, workers=2) as loader:
        assert facts(loader) == expected
        assert loader.state() == here.state()
    assert len(expected[0]) == 8 and len(expected[2]) > 1


def test_results_are_those_of_the_model(params):
    trees = Trees(6)
    batched = new_batched(encode, params)
    with eb.Loader(batched, trees, 4, keep=False, workers=2) as loader:
        for item in loader:
            hidden, _ = batched.apply(params, item.plan)
            for row, k in zip(hidden, item.index, strict=False):
                np.testing.assert_allclose(row, encode(params, trees[k])[0], atol=1e-5)


def test_a_mesh(params, spawned):
    loaders = [
        eb.Loader(
            new_batched(encode, params).sharded(), Trees(5), 2, keep=False, **more
        )
        for more in ({}, {"workers": 1})
    ]
    expected, found = map(facts, loaders)
    assert found == expected
    loaders[1].close()


def test_all_workers_record_where_the_data_set_is_read(tmp_path, params):
    batched = new_batched(encode, params)
    with eb.Loader(
        batched, Trees(40, tmp_path), 2, keep=False, workers=2, prefetch=4
    ) as loader:
        list(loader)
        assert len(own_processes()) == 2
        readers = {each.name for each in tmp_path.iterdir()}
        assert readers == {str(each.pid) for each in own_processes()}


def test_processes_end_once_all_is_recorded_that_is_kept(params):
    loader = eb.Loader(new_batched(encode, params), Trees(8), 2, workers=2)
    assert not own_processes()
    assert len(list(loader)) == 4


def test_workers_start_no_client_of_xla(spawned):
    batched = eb.batch(double, params=jnp.float32(1))
    loader = eb.Loader(batched, Clients(), 4, shuffle=False, keep=False, workers=1)
    with loader:
        for item in loader:
            found = batched.apply(jnp.float32(1), item.plan)
    assert np.asarray(found).tolist() == 4 * [[0, 1, 1, 1]]


def test_transforms_depend_on_seed_epoch_and_instance(params):
    def run(**settings):
        batched = new_batched(encode, params)
        with eb.Loader(
            batched,
            Trees(5),
            5,
            shuffle=False,
            keep=False,
            transform=replace_word,
            **settings,
        ) as loader:
            return facts(loader)[1]

    expected = run(seed=1)
    assert expected[0] != expected[1]
    assert run(seed=1, workers=2) == expected
    assert run(seed=2) != expected


def test_a_loop_that_was_left_is_gone_on_with(params):
    settings = {"keep": False, "seed": 5}
    expected = facts(eb.Loader(new_batched(encode, params), Trees(9), 2, **settings))
    batched = new_batched(encode, params)
    with eb.Loader(batched, Trees(9), 2, **settings, workers=2) as loader:
        places = []
        for stop in (1, 3, 6):
            for item in islice(loader.epochs(2 - loader.epoch), stop):
                places.append((item.epoch, item.step, item.index.tolist()))
        assert places == expected[0]
        state = loader.state()
    with eb.Loader(batched, Trees(9), 2, **settings, workers=1, state=state) as loader:
        assert next(iter(loader)).epoch == 2


def test_a_second_loop_ends_the_first(params):
    batched = new_batched(encode, params)
    with eb.Loader(batched, Trees(8), 2, keep=False, workers=1) as loader:
        first = iter(loader)
        next(first)
        second = iter(loader)
        assert next(second).step == 1
        with pytest.raises(
            eb.LoaderError, match="only one loop at a time can run over"
        ):
            next(first)
        assert [item.step for item in second] == [2, 3]
        third = iter(loader)
        next(third)
        loader.close()
        with pytest.raises(eb.LoaderError, match="one loop at a time"):
            next(third)
        assert not own_processes()
        assert len(list(loader)) == 3  # a later loop starts processes again


def test_processes_of_a_forgotten_loader_end(params):
    loader = eb.Loader(new_batched(encode, params), Trees(8), 2, keep=False, workers=1)
    items = iter(loader)
    next(items)
    assert own_processes()
    del items, loader
    gc.collect()
    assert not own_processes()


@pytest.mark.parametrize("keep", [True, False])
def test_an_exception_of_a_worker(params, keep):
    batched = new_batched(encode, params)
    data = Failing(8, 5, "no such file")
    with pytest.raises(KeyError, match="no such file") as caught:
        loader = eb.Loader(batched, data, 2, shuffle=False, keep=keep, workers=2)
        places = []
        for item in loader:
            places.append(item.step)
    cause = caught.value.__cause__
    assert isinstance(cause, WorkerTraceback)
    assert "in fail\n    raise KeyError(error)" in str(cause)
    notes = caught.value.__notes__
    assert "while recording instance 5 of the data set" in notes
    if not keep:
        assert places == [0, 1] and "for minibatch 2 of epoch 0" in notes
        loader.close()


class Echo:
    """Stands in for a process; its answer to a task is the task's number."""

    waiting = 0

    def send(self, message):
        pass

    def receive(self, serial, stopped):
        return serial


def test_an_answer_that_cannot_be_read_fails_alone():
    """Even if it is read while waiting for a later answer."""

    def read(answer):
        if answer == 2:
            raise MemoryError("no room for the answer")
        return answer

    workers = processes.Workers(0, b"", read)
    workers._workers.append(Echo())
    first, second, third = (workers.submit(Task([k], 0)) for k in range(3))
    assert third.result() == 3
    with pytest.raises(MemoryError, match="no room"):
        second.result()
    assert first.result() == 1
    workers._workers.clear()


def test_a_data_set_that_fails_names_the_instance(params):
    for keep, doing in ((True, "reading"), (False, "recording")):
        data = Failing(8, 5, "no such file")
        with pytest.raises(KeyError, match="no such file") as caught:
            list(eb.Loader(new_batched(encode, params), data, 2, keep=keep))
        note = f"while {doing} instance 5 of the data set"
        assert note in caught.value.__notes__


def test_a_model_that_fails_names_the_instance(params):
    batched = new_batched(encode, params)
    data = [(1, 2), 3, None, 4]
    for workers in (0, 1):
        loader = eb.Loader(batched, data, 2, shuffle=False, keep=False, workers=workers)
        with loader, pytest.raises(TypeError, match="not iterable") as caught:
            list(loader)
        assert "while recording instance 2 of the data set" in caught.value.__notes__


def test_an_exception_that_cannot_travel(params):
    data = Failing(4, 1, "unpicklable")
    with pytest.raises(
        eb.LoaderError, match="met Unpicklable: this and that"
    ) as caught:
        eb.Loader(new_batched(encode, params), data, 2, workers=1)
    assert "in fail" in str(caught.value.__cause__)
    assert "while recording instance 1 of the data set" in caught.value.__notes__


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("killed", "but SIGKILL ended one while it had .* usually the system had no"),
        ("exits", "one ended with exit code 3 while it had .* usually the data set or"),
        ("exits slowly", "one ended with exit code 3 while it had .* the data set or"),
    ],
)
@pytest.mark.parametrize("bad", [0, 30])
@pytest.mark.parametrize("keep", [True, False])
def test_a_worker_that_ends(params, error, message, bad, keep):
    batched = new_batched(encode, params)
    data = Failing(40, bad, error)
    with pytest.raises(eb.LoaderError, match=message):
        loader = eb.Loader(batched, data, 2, shuffle=False, keep=keep, workers=2)
        list(loader)
    assert not own_processes()


def test_a_loop_is_left_while_a_worker_hangs(params):
    batched = new_batched(encode, params)
    data = Failing(8, 2, "hangs")
    loader = eb.Loader(batched, data, 2, shuffle=False, keep=False, workers=1)
    items = iter(loader)
    assert next(items).step == 0
    items.close()
    loader.close()


def test_ctrl_c_while_a_worker_hangs(params, spawned):
    batched = new_batched(encode, params)
    data = Failing(8, 2, "hangs")
    loader = eb.Loader(batched, data, 2, shuffle=False, keep=False, workers=2)
    main = threading.main_thread().ident
    steps = []
    with loader, pytest.raises(KeyboardInterrupt):
        for item in loader:
            steps.append(item.step)
            press = threading.Timer(
                0.5, lambda: signal.pthread_kill(main, signal.SIGINT)
            )
            press.start()
    press.join()
    assert steps == [0]


def test_what_cannot_be_sent_to_workers(params):
    def local(params, tree):
        return encode(params, tree)

    trees = sample_trees(0, 4)
    rule = r"its model, <function .*>, cannot be pickled: .*local.* at the top level"
    for keep in (True, False):
        with pytest.raises(eb.LoaderError, match=rule):
            eb.Loader(new_batched(local, params), trees, 2, keep=keep, workers=1)
    batched = new_batched(encode, params)
    with pytest.raises(eb.LoaderError, match=r"its transform, <function .* cannot"):
        eb.Loader(
            batched,
            trees,
            2,
            keep=False,
            workers=1,
            transform=lambda tree, rng: tree,
        )
    with pytest.raises(eb.LoaderError, match=r"its data set, .* cannot be pickled"):
        eb.Loader(batched, [1, threading.Lock()], 2, keep=False, workers=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"transform": replace_word}, "but this loader keeps recordings .* keep=False"),
        ({"keep": False, "group_by_size": True}, "group_by_size sorts by the sizes"),
        ({"keep": False, "workers": 1, "prefetch": 0}, "but prefetch is 0; leave it"),
        ({"keep": False, "transform": 3}, "transform of a loader is a function of"),
        ({"transform": 3}, "transform of a loader is a function of"),
        ({"workers": -1}, "workers of a loader is a whole number, 0 or more"),
    ],
)
def test_settings_that_contradict(params, settings, message):
    with pytest.raises(eb.LoaderError, match=message):
        eb.Loader(new_batched(encode, params), [1, 2], 1, **settings)


def test_recordings_are_no_instances_to_record(params):
    batched = new_batched(encode, params)
    kept = batched.record_all([1, (2, 3)])
    with pytest.raises(eb.LoaderError, match="there are recordings among them; pass"):
        eb.Loader(batched, [1, *kept], 2, keep=False)
    # If the loader keeps recordings, the data may contain recordings.
    loader = eb.Loader(batched, [(4, 5), *kept], 2, workers=1)
    assert [len(item.index) for item in loader] == [2, 1]


def test_instances_that_are_read_by_number_and_kept(params):
    found = facts(eb.Loader(new_batched(encode, params), Trees(6), 2))
    trees = [Trees(6)[k] for k in range(6)]
    assert found == facts(eb.Loader(new_batched(encode, params), iter(trees), 2))


SCRIPT = """
import edbatch as eb, jax.numpy as jnp

@eb.cell
def double(params, x):
    return params * x

class Data:
    def __len__(self):
        return 4
    def __getitem__(self, k):
        return float(k)

def main():
    batched = eb.batch(double, params=jnp.float32(2.0))
    loader = eb.Loader(batched, Data(), 2, shuffle=False, keep=False, workers=1)
    items = loader.epochs()
    print(batched.apply(jnp.float32(2.0), next(items).plan).tolist())

"""


@pytest.mark.parametrize("guarded", [True, False])
def test_a_script(tmp_path, guarded):
    """Guarded, it ends in the middle of a loop; unguarded, workers start workers."""
    guard = 'if __name__ == "__main__":\n    main()' if guarded else "main()"
    (tmp_path / "script.py").write_text(SCRIPT + guard)
    done = subprocess.run(
        [sys.executable, "-P", tmp_path / "script.py"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    if guarded:
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "[0.0, 2.0]\n"
    else:
        assert done.returncode == 1
        assert "before it had recorded anything" in done.stderr
        assert 'below if __name__ == "__main__":' in done.stderr


def test_workers_of_a_new_process_ignore_ctrl_c(tmp_path):
    """The process's first loader: Python also starts a helper with the first worker."""
    script = tmp_path / "first_loader.py"
    script.write_text(
        """
import signal
import edbatch as eb
import numpy as np

@eb.cell
def same(params, blocked):
    return blocked

class Blocked:
    def __len__(self):
        return 2
    def __getitem__(self, k):
        return np.int32(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()))

if __name__ == "__main__":
    batched = eb.batch(same, params={})
    with eb.Loader(batched, Blocked(), 2, workers=1, keep=False) as loader:
        for minibatch in loader:
            print(batched.apply({}, minibatch.plan).tolist())
"""
    )
    done = subprocess.run(
        [sys.executable, "-P", script], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "[1, 1]\n"), done.stderr


@pytest.mark.parametrize(
    ("instance", "error", "text"),
    [
        (lambda: 1, LoaderError, r"one of \[0.*cannot be pickled"),
        ([Opened()], FileNotFoundError, "no such file as this instance opens"),
    ],
    ids=["not sent", "not received"],
)
def test_instances_that_do_not_travel(instance, error, text, params):
    batched = eb.batch(encode, params=params, sizes=SIZES)
    with pytest.raises(error, match=text):
        eb.Loader(batched, [instance] * 4, 2, workers=1)


FORKS = """
import os
import time

from loaded_data import Trees
from trees import encode, make_params

import edbatch as eb
from edbatch.errors import LoaderError


class Slow(Trees):
    def __getitem__(self, k):
        time.sleep(0.5)
        return super().__getitem__(k)


def forked(ask):
    child = os.fork()
    if not child:
        code = 1
        try:
            code = ask()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def goes_on():
    try:
        next(loop)
    except LoaderError as error:
        return 7 if "is a fork of" in str(error) else 2


def closes():
    loop.close()
    loader.close()
    return 7


if __name__ == "__main__":
    batched = eb.batch(encode, params=make_params())
    loader = eb.Loader(
        batched, Slow(16), 4, shuffle=False, keep=False, workers=2
    )
    loop = iter(loader)
    next(loop)
    time.sleep(1)  # the thread has planned the second minibatch, and waits
    assert [forked(each) for each in (goes_on, closes)] == [7, 7]
    assert len(list(loop)) == 3  # the workers are there
"""


def test_a_fork_lets_go_of_loops_and_workers(tmp_path):
    """A fork has none of the threads, and the workers belong to its parent."""
    script = tmp_path / "forks.py"
    script.write_text(FORKS)
    path = os.pathsep.join([*filter(None, sys.path)])
    found = subprocess.run(
        [sys.executable, script],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert found.returncode == 0, found.stderr
