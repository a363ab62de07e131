"""Requests with node types that the server does not know."""

import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb
from edbatch.errors import EdbatchError

PARAMS = jnp.float32(2)


@pytest.fixture(autouse=True)
def coarse():
    with eb.use_tiers("coarse"):
        yield


@eb.cell
def scale(params, x):
    return params * x


def model(params, x):
    return scale(params, np.asarray(x, np.float32))


def swallowing(params, x):
    try:
        return model(params, x)
    except EdbatchError:
        return "all is well"


def asking(params, x):
    """A new type in each iteration; the last has the length of the input."""
    for k in range(1, len(x)):
        eb.value(model(params, x[:k]))
    return model(params, x)


def answers(server, lengths):
    futures = server.submit_many([[1.0] * n for n in lengths])
    return [
        each.exception(60) or len(np.ravel(each.result())) * each.result()[0]
        for each in futures
    ]


@pytest.mark.parametrize("own", [model, swallowing])
def test_no_more_than_a_limit_beside_those_of_the_warm_up(own):
    batched = eb.batch(own)
    with eb.Server(batched, PARAMS, max_new_types=2) as server:
        server.warm_up([[1.0] * n for n in (1, 2, 3)])
        found = answers(server, [1, 4, 5, 6, 2, 7])
        assert [found[k] for k in (0, 1, 2, 4)] == [2, 8, 10, 4]
        for each in (found[3], found[5]):
            assert isinstance(each, eb.RecordingError)
            assert "cell 'scale' is called with shapes, dtypes or static" in str(each)
            assert "taken 2 such types since its warm-up, which is max_new_types" in (
                str(each)
            )
        assert answers(server, [5, 3]) == [10, 6]
        server.warm_up([[1.0] * 6])
        assert answers(server, [6, 7, 8]) == [12, 14, 16]
        [last] = answers(server, [9])
        assert isinstance(last, eb.RecordingError)
    assert server.stats().failed == 3
    # Refused calls are not traced, either.
    assert len(batched.bind(PARAMS).types) == 8


def test_calls_beside_the_server_do_not_count():
    batched = eb.batch(model)
    first, second = (eb.Server(batched, PARAMS, max_new_types=2) for _ in range(2))
    with first, second:
        first.warm_up([[1.0]])
        for n in range(2, 7):
            batched(PARAMS, [[1.0] * n])
        assert answers(first, [7, 8]) == [14, 16]
        assert answers(second, [9, 10]) == [18, 20]
        for server in (first, second):
            found = answers(server, [11, 1, 6, 9])
            assert isinstance(found[0], eb.RecordingError) and found[1:] == [2, 12, 18]


def test_array_kinds_of_what_is_refused_are_not_kept():
    batched = eb.batch(model)
    with eb.Server(batched, PARAMS, max_new_types=0) as server:
        server.warm_up([[1.0]])
        kinds = len(batched.bind(PARAMS).types.avals)
        for found in answers(server, range(2, 30)):
            assert isinstance(found, eb.RecordingError)
        assert len(batched.bind(PARAMS).types.avals) == kinds


def test_between_two_values():
    with eb.Server(eb.batch(asking), PARAMS, max_new_types=3) as server:
        found = answers(server, [2, 5, 3])
        assert found[::2] == [4, 6] and isinstance(found[1], eb.RecordingError)
        assert answers(server, [3, 1]) == [6, 2]


def test_none_and_any_number():
    with eb.Server(eb.batch(model), PARAMS, max_new_types=0) as server:
        [refused] = answers(server, [1])
        assert isinstance(refused, eb.RecordingError)
        server.swap_params(2 * PARAMS)
        server.warm_up([[1.0]])
        assert answers(server, [1]) == [4]
    with eb.Server(eb.batch(model), PARAMS) as server:
        assert answers(server, range(1, 9)) == [2 * n for n in range(1, 9)]
    with pytest.raises(EdbatchError, match=r"max_new_types of eb\.Server"):
        eb.Server(eb.batch(model), PARAMS, max_new_types=-1)


def test_an_instance_of_a_warm_up_that_fails_is_named():
    with eb.Server(eb.batch(lambda params, x: model(params, x[0])), PARAMS) as server:
        with pytest.raises(TypeError) as caught:
            server.warm_up([[[1.0]], [[2.0]], 3])
        assert caught.value.__notes__ == ["for instance 2 of the sample"]


def test_an_error_that_is_raised_again_is_told_once():
    error = ValueError("no")

    def failing(params, x):
        raise error

    with eb.Server(eb.batch(failing), PARAMS) as server:
        for _ in range(3):
            with pytest.raises(ValueError, match="no"):
                server.warm_up([[1.0]])
    assert error.__notes__ == ["for instance 0 of the sample"]
