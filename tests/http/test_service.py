"""Services: their parts, and their JSON."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
from asking_models import make_params
from pydantic import BaseModel
from served_jobs import EXAMPLES, model, service

import edbatch as eb
from edbatch.errors import DeadlineError, ServiceError
from edbatch.http import Service, as_json
from edbatch.http.contract import Contract
from edbatch.http.model_error import InputError, first_line, guarded_batch
from edbatch.http.refusal import Refusal, refusal_of


def plain(params, x):
    return x


def test_a_service_is_checked():
    assert Service(plain).name == "plain"
    assert Service(eb.batch(plain)).name == "plain"
    for fields, text in (
        ({"model": 3}, "model of a Service is a function"),
        ({"model": plain, "decode": 3}, "decode of a Service"),
        ({"model": plain, "encode": None}, "encode of a Service"),
        ({"model": plain, "init_params": {}}, "init_params of a Service"),
        ({"model": plain, "load_params": "a"}, "load_params of a Service"),
    ):
        with pytest.raises(ServiceError, match=text):
            Service(**fields)


def test_answers_as_json():
    @dataclass
    class Found:
        score: np.ndarray
        words: tuple

    found = as_json({1: Found(np.float32([[0.5]]), (None, True)), "b": np.int32(3)})
    assert found == {"1": {"score": [[0.5]], "words": [None, True]}, "b": 3}
    assert json.dumps(found)
    with pytest.raises(
        ServiceError, match="cannot be written as JSON; give the service"
    ):
        as_json([object()])


def test_a_contract_reads_and_writes():
    contract = Contract(service, 64)
    call = contract.read(b'{"input": {"words": [1]}, "deadline_ms": 5}')
    assert (call.instance.words, call.deadline_ms, call.priority) == ([1], 5, 0)
    assert [each.steps for each in contract.sample] == [x["steps"] for x in EXAMPLES]
    written = contract.write({"h": np.zeros(2), "name": "a"})
    assert json.loads(written) == {"output": {"h": [0, 0], "name": "a"}}
    with pytest.raises(Refusal, match=r"input\.words\.1: .*less than 12"):
        contract.read(b'{"input": {"words": [1, 99]}}')
    with pytest.raises(Refusal, match="the body is not JSON") as caught:
        contract.read(b"{")
    assert caught.value.status == 400


def test_any_type_that_is_checked_will_do():
    class Point(BaseModel):
        x: float
        y: float = 0.0

    contract = Contract(Service(plain, input=list[Point]), 64)
    assert contract.read(b'{"input": [{"x": 1}]}').instance == [Point(x=1)]
    with pytest.raises(Refusal, match=r"input\.0\.x"):
        contract.read(b'{"input": [{"x": "1"}]}')
    anything = Contract(Service(plain), 64)
    assert anything.read(b'{"input": {"a": [1]}}').instance == {"a": [1]}
    for field in ("input", "output"):
        with pytest.raises(
            ServiceError, match=f"make a schema of {field} of the service"
        ):
            Contract(Service(plain, **{field: np.ndarray}), 64)


def test_examples_are_what_clients_send():
    made = Contract(Service(plain, examples=lambda: iter([1, 2])), 64)
    assert list(made.sample) == [1, 2]
    with pytest.raises(ServiceError, match="example 1 of the service would be refused"):
        Contract(Service(plain, input=int, examples=[1, "a"]), 64)
    for value in (np.zeros(2), np.float32(1), float("nan"), {1, 2}):
        with pytest.raises(ServiceError, match="example 0 of the service would be ref"):
            Contract(Service(plain, examples=[value, 1]), 64)


def test_errors_of_the_model_are_told_from_those_of_the_server():
    instances = EXAMPLES[:2]
    for found in (guarded_batch(model, None), guarded_batch(eb.batch(model), "agenda")):
        with pytest.raises(InputError, match="input: AttributeError"):
            found.model(make_params(), instances[0])
        assert found.model.__name__ == "model"
    assert guarded_batch(eb.batch(model, "depth"), "agenda").policy is not None
    cases = (
        (InputError(ValueError("a\nb")), 422, "input: ValueError: a"),
        (eb.RecordingError("too large"), 422, "too large"),
        (DeadlineError("late"), 504, "late"),
        (eb.ServerFullError("full"), 429, "send the request again later"),
        (eb.ServerClosedError("closed"), 503, "shutting down"),
        (MemoryError("SECRET"), 500, "see the server's log"),
    )
    for error, status, text in cases:
        refusal = refusal_of(error)
        assert refusal.status == status
        assert text in refusal.message
        assert "SECRET" not in refusal.message


def test_messages_that_are_no_utf8():
    """For example, a message with a file name in another encoding."""
    refusal = refusal_of(InputError(ValueError("no file \udcff.txt")))
    body = json.loads(refusal.response().body)
    assert body["error"]["message"].endswith("no file \\udcff.txt")


def test_long_messages_are_cut():
    assert first_line(ValueError("x" * 10_000)).endswith("x...")
    assert len(first_line(ValueError("x" * 10_000))) == 300
    assert first_line(ValueError()) == "ValueError"
