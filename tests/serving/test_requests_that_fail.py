"""A request that fails, however it does, fails alone."""

import pytest
from asking_models import embed, make_params, score, turn
from compared_answers import assert_same

import edbatch as eb
from edbatch.serving import generation


@pytest.fixture(autouse=True)
def coarse():
    with eb.use_tiers("coarse"):
        yield


@pytest.fixture(autouse=True, params=["whole", "in parts"])
def parts(request, monkeypatch):
    """Requests run all together, or in two parts."""
    if request.param == "in parts":
        monkeypatch.setattr(generation, "_TWO_PARTS", 2)


def steps(params, count):
    """Takes so many steps, each after a look at the last."""
    state = embed(params, count % 12)[0]
    for _ in range(count):
        state = turn(
            params, state, 1.0 if eb.value(score(params, state))[0] > 0 else 0.5
        )
    return state


def check_good(server, futures, params):
    """The others are answered rightly, and so are those that come later."""
    for count, future in futures:
        assert_same(future.result(60), steps(params, count))
    assert_same(server.submit_nowait(3).result(60), steps(params, 3))
    assert server.is_running


def returned(params, state):
    return {"state": state}


def passed(params, state):
    return turn(params, state, 1.0)


def looked_at(params, state):
    return eb.value([state])


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("use", [returned, passed, looked_at])
def test_handles_of_other_requests_are_refused(use, swapped):
    """A global cache holds one of a request that was answered long ago."""
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
    """What they recorded was undone, and others have the numbers of their values."""
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
