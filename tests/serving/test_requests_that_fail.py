"""A request that fails in any way fails alone."""

import asyncio
import sys
import threading
from concurrent.futures import Future

import jax
import numpy as np
import pytest
from asking_models import embed, make_params, steps, turn
from compared_answers import assert_same
from jax.sharding import Mesh
from never_lowered import uncompiled

import edbatch as eb
from edbatch.compilation.jax_settings import settings
from edbatch.graph.tape import Tape
from edbatch.serving import generation
from edbatch.waves.runner import WaveRunner


@pytest.fixture(autouse=True)
def coarse():
    with eb.use_tiers("coarse"):
        yield


@pytest.fixture(autouse=True, params=["whole", "in parts"])
def parts(request, monkeypatch):
    """Requests run all together or in two parts."""
    if request.param == "in parts":
        monkeypatch.setattr(generation, "_TWO_PARTS", 2)


def check_good(server, futures, params):
    """Checks that the other requests and a later one are answered correctly."""
    for count, future in futures:
        assert_same(future.result(60), steps(params, count))
    assert_same(server.submit_nowait(3).result(60), steps(params, 3))
    assert server.is_running


def test_a_request_may_return_a_parameter():
    def model(params, count):
        state = steps(params, count)
        return {"table": params["table"], "state": state} if count == 1 else state

    params = make_params()
    with eb.Server(eb.batch(model), params) as server:
        good = [(k, server.submit_nowait(k)) for k in (2, 5)]
        one = server.submit_nowait(1).result(60)
        assert_same(one, {"table": params["table"], "state": steps(params, 1)})
        check_good(server, good, params)


def returned(params, state):
    return {"state": state}


def passed(params, state):
    return turn(params, state, 1.0)


def looked_at(params, state):
    return eb.value([state])


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("use", [returned, passed, looked_at])
def test_handles_of_other_requests_are_refused(use, swapped):
    """A global cache holds a handle of a request that was answered earlier."""
    kept = []

    def model(params, count):
        if count >= 0:
            return steps(params, count)
        state = embed(params, 1)[0]
        if not kept:
            eb.value(state)
            kept.append(turn(params, state, 1.0))
        return use(params, kept[0])

    params = make_params()
    with eb.Server(eb.batch(model), params) as server:
        server.submit_nowait(-1).result(60)  # its own handle
        if swapped:
            params = make_params(1)
            server.swap_params(params)
        for _ in range(3):
            futures = [(k, server.submit_nowait(k)) for k in range(5)]
            bad = server.submit_nowait(-1)
            futures += [(k, server.submit_nowait(k)) for k in range(5)]
            with pytest.raises(eb.RecordingError, match="belongs to another instance"):
                bad.result(60)
            check_good(server, futures, params)


def test_handles_of_requests_that_failed_are_refused():
    """Their recording was undone, and other requests reuse their values' numbers."""
    kept = []

    def model(params, count):
        if count == -2:
            return kept[0]
        state = steps(params, max(count, 0))
        if count == -1:
            kept.append([turn(params, state, 1.0) for _ in range(50)][-1])
            raise ValueError("after it has kept a handle")
        return state

    params = make_params()
    with eb.Server(eb.batch(model), params) as server:
        with pytest.raises(ValueError, match="kept a handle"):
            server.submit_nowait(-1).result(60)
        futures = [(k, server.submit_nowait(k)) for k in range(5)]
        with pytest.raises(eb.RecordingError, match="belongs to another instance"):
            server.submit_nowait(-2).result(60)
        check_good(server, futures, params)


class Panic(BaseException):
    """An exception of a library that is not an `Exception`."""


def exits(count):
    sys.exit(count)


def panics(count):
    raise Panic("in a tokenizer")


def cancels(count):
    raise asyncio.CancelledError


@pytest.mark.parametrize("end", [exits, panics, cancels])
@pytest.mark.parametrize("when", ["at once", "after a value", "as it is ended"])
def test_what_ends_a_program_ends_one_request(when, end):
    def model(params, count):
        if count >= 0:
            return steps(params, count)
        if when == "at once":
            end(count)
        try:
            state = steps(params, 2)
            if when == "after a value":
                end(count)
            eb.value(state)
            raise ValueError("fails by itself")
        finally:
            if when == "as it is ended":
                end(count)

    params = make_params()
    with eb.Server(eb.batch(model), params) as server:
        futures = [(k, server.submit_nowait(k)) for k in range(5)]
        bad = server.submit_nowait(-1)
        futures += [(k, server.submit_nowait(k)) for k in range(5)]
        error = bad.exception(60)
        assert isinstance(error, eb.ServerError)  # safe to raise in any event loop
        assert isinstance(error.__cause__, (SystemExit, Panic, asyncio.CancelledError))
        assert type(error.__cause__).__name__ in str(error)
        check_good(server, futures, params)
        assert server.stats().failed == 1


class Hostile(BaseException):
    def __repr__(self):
        raise KeyboardInterrupt("as it is told")


def test_an_exception_that_cannot_be_told_ends_one_request():
    def model(params, count):
        if count < 0:
            raise Hostile
        return steps(params, count)

    params = make_params()
    with eb.Server(eb.batch(model), params) as server:
        bad = server.submit_nowait(-1)
        assert str(bad.exception(60)).startswith("the request raised Hostile, which is")
        check_good(server, [(2, server.submit_nowait(2))], params)


def test_what_fails_beside_the_model_ends_what_is_in_flight(monkeypatch):
    params = make_params()
    with eb.Server(eb.batch(steps), params) as server:
        check_good(server, [(2, server.submit_nowait(2))], params)
        with monkeypatch.context() as patch:
            patch.setattr(Tape, "mark", lambda self: 1 // 0)
            with pytest.raises(ZeroDivisionError):
                server.submit_nowait(3).result(60)
        check_good(server, [(k, server.submit_nowait(k)) for k in range(5)], params)
        assert server.stats().failed == 1


@pytest.mark.parametrize("most", [sys.maxsize, 2**63, 10**30])
def test_a_limit_may_be_as_large_as_one_likes(most):
    params = make_params()
    with eb.Server(eb.batch(steps), params, max_nodes=most) as server:
        futures = server.submit_many([1, 2, 3])
        check_good(server, list(zip([1, 2, 3], futures, strict=True)), params)


def deleted(leaf):
    found = jax.numpy.array(leaf)
    found.delete()
    return found


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (deleted, r"params\['\w+'\].* was deleted, usually since .*donate_argnums"),
        (jax.typeof, r"of type ShapedArray; pass arrays of JAX or NumPy"),
        (np.ma.masked_array, r"of type MaskedArray; pass arrays of JAX or NumPy"),
    ],
    ids=["deleted", "shape", "masked"],
)
def test_parameters_that_no_request_could_run_with_are_refused(change, told):
    params = make_params()
    leaves, treedef = jax.tree.flatten(params)
    wrong = treedef.unflatten([change(leaves[0]), *leaves[1:]])
    with pytest.raises(eb.PlanError, match=told):
        eb.Server(eb.batch(steps), wrong)
    with eb.Server(eb.batch(steps), params) as server:
        with pytest.raises(eb.PlanError, match=told):
            server.swap_params(wrong)
        check_good(server, [(2, server.submit_nowait(2))], params)


def test_what_ends_a_program_in_clean_up_ends_nothing():
    """The request is suspended when its deadline passes."""
    closed = []

    def model(params, count):
        try:
            return steps(params, count)
        finally:
            if count > 100:
                closed.append(count)
                sys.exit(1)

    params = make_params()
    with eb.Server(eb.batch(model), params) as server:
        server.submit_nowait(10**9, deadline_ms=20).exception(60)
        check_good(server, [(k, server.submit_nowait(k)) for k in range(5)], params)
    assert closed == [10**9]


@pytest.mark.parametrize("error", [SystemExit, Panic, ValueError])
def test_a_callback_that_raises_ends_nothing(error, caplog):
    told = []

    def raises(future):
        raise error("in a callback")

    params = make_params()
    with eb.Server(eb.batch(steps), params) as server:
        for count in (2, -(2**40)):  # one request is answered, and one fails
            future = server.submit_nowait(count)
            future.add_done_callback(raises)
            future.add_done_callback(told.append)
            future.exception(60)
            future.add_done_callback(raises)  # called at once
        check_good(server, [(k, server.submit_nowait(k)) for k in range(5)], params)
        assert len(told) == 2 and all(isinstance(each, Future) for each in told)
    assert caplog.text.count(f"{error.__name__}: in a callback") >= 4


def test_a_policy_that_ends_a_program_fails_requests_and_not_the_server(monkeypatch):
    launch, failures = WaveRunner.launch, [SystemExit(1)]

    def once(self, *arguments, **options):
        if failures:
            raise failures.pop()
        return launch(self, *arguments, **options)

    params = make_params()
    with eb.Server(eb.batch(steps), params) as server:
        monkeypatch.setattr(WaveRunner, "launch", once)
        assert isinstance(server.submit_nowait(3).exception(60), eb.ServerError)
        check_good(server, [(3, server.submit_nowait(3))], params)


def test_ctrl_c_ends_a_warm_up():
    """It is raised in the calling thread, without waiting for further instances."""
    ran = []

    def model(params, count):
        ran.append(count)
        if count == 1:
            raise KeyboardInterrupt
        return steps(params, count)

    with eb.Server(eb.batch(model), make_params()) as server:
        with pytest.raises(KeyboardInterrupt):
            server.warm_up([0, 1, 2])
        assert 2 not in ran


def test_a_setting_of_jax_around_a_value_is_refused():
    """The setting would persist in the server's thread."""
    seen = []

    def model(params, count):
        seen.append(settings())
        if count >= 0:
            return steps(params, count)
        with jax.default_matmul_precision("highest"):
            return steps(params, 3)

    params = make_params()
    with eb.Server(eb.batch(model), params) as server:
        futures = [(k, server.submit_nowait(k)) for k in range(5)]
        bad = server.submit_nowait(-1)
        futures += [(k, server.submit_nowait(k)) for k in range(5)]
        with pytest.raises(eb.RecordingError, match="leave the context manager"):
            bad.result(60)
        check_good(server, futures, params)
    assert set(seen) == {settings()}


def test_requests_run_under_the_mesh_that_the_server_was_made_under():
    seen = []

    def model(params, count):
        seen.append(jax.sharding.get_mesh())
        return steps(params, count)

    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    params = make_params()
    with jax.set_mesh(mesh):
        server = eb.Server(eb.batch(model), params)
    with server:
        assert_same(server.submit_nowait(2).result(60), steps(params, 2))
    assert seen == [mesh]


def test_a_setting_of_the_process_may_change_while_requests_run():
    go_on, changed = threading.Event(), threading.Event()

    def model(params, count):
        state = steps(params, count)
        go_on.set()
        changed.wait(60)
        eb.value(state)
        return steps(params, count)

    params = make_params()
    before = jax.config.jax_default_matmul_precision
    with eb.Server(eb.batch(model), params) as server:
        futures = [server.submit_nowait(2) for _ in range(3)]
        go_on.wait(60)
        jax.config.update("jax_default_matmul_precision", "highest")
        changed.set()
        try:
            for each in futures[1:]:
                assert_same(each.result(60), steps(params, 2))
        finally:
            jax.config.update("jax_default_matmul_precision", before)


@jax.tree_util.register_pytree_node_class
class Picky:
    """A pytree that accepts handles, but not NumPy arrays."""

    def __init__(self, state):
        if isinstance(state, np.ndarray):
            raise TypeError("no arrays of NumPy")
        self.state = state

    def tree_flatten(self):
        return (self.state,), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


def test_an_answer_that_cannot_be_made_fails_alone():
    def model(params, count):
        return Picky(steps(params, 2)) if count < 0 else steps(params, count)

    params = make_params()
    with eb.Server(eb.batch(model), params) as server:
        futures = [(k, server.submit_nowait(k)) for k in range(5)]
        bad = [server.submit_nowait(-1) for _ in range(2)]
        futures += [(k, server.submit_nowait(k)) for k in range(5)]
        for each in bad:
            with pytest.raises(TypeError, match="no arrays of NumPy"):
                each.result(60)
        check_good(server, futures, params)
        assert (server.stats().failed, server.stats().in_flight) == (2, 0)


@eb.cell
def drawn(params, x, rng):
    return x + jax.random.normal(rng)


def test_a_request_that_draws_where_there_is_no_key():
    def model(params, count):
        state = steps(params, abs(count))
        return drawn(params, np.float32(1)) if count < 0 else state

    params = make_params()
    batched = eb.batch(model)
    with eb.Server(batched, params) as server:
        good = [(k, server.submit_nowait(k)) for k in (2, 5)]
        with pytest.raises(eb.PlanError, match="cell 'drawn' takes a key"):
            server.submit_nowait(-2).result(60)
        check_good(server, good, params)
    with eb.Server(batched, params, rng=jax.random.key(0)) as server:
        assert np.isfinite(server.submit_nowait(-2).result(60))
    with eb.Server(batched, params) as server:
        check_good(server, [], params)


def test_a_cell_that_cannot_be_compiled_fails_with_its_wave_alone():
    def model(params, count):
        state = steps(params, abs(count))
        if count < 0:
            eb.value(uncompiled(params, np.float32(1)))
        return state

    params = make_params()
    with eb.Server(eb.batch(model), params) as server:
        check_good(server, [], params)
        for _ in range(2):
            with pytest.raises(NotImplementedError, match="never_lowered"):
                server.submit_nowait(-2).result(60)
            check_good(server, [], params)
