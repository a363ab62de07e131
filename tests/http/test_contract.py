"""Exceptions of a service's own types and functions, for clients and in the log."""

import json
from dataclasses import dataclass
from typing import Annotated

import pytest
from pydantic import AfterValidator
from starlette.requests import ClientDisconnect

import edbatch as eb
from edbatch.errors import DeadlineError, ServerClosedError, ServiceError
from edbatch.http import Service
from edbatch.http.contract import Contract
from edbatch.http.model_error import InputError
from edbatch.http.refusal import Refusal, refusal_of


class Unprintable(ValueError):
    def __str__(self):
        raise SystemExit


def model(params, word):
    return word


def body(value):
    return json.dumps({"input": value}).encode()


RAISED = [
    KeyError("x"),
    RecursionError("deep"),
    MemoryError(),
    StopIteration(),
    SystemExit(3),
    GeneratorExit(),
    Unprintable(),
]


@pytest.mark.parametrize("error", RAISED)
def test_what_a_validator_raises_is_the_fault_of_the_input(error):
    def known(word):
        if word == "unknown":
            raise error
        return word

    contract = Contract(
        Service(model, input=Annotated[str, AfterValidator(known)]), max_depth=9
    )
    assert contract.read(body("known")).instance == "known"
    with pytest.raises((InputError, Refusal)) as found:
        contract.read(body("unknown"))
    assert refusal_of(found.value).status == 422


def test_what_a_dataclass_raises_is_the_fault_of_the_input():
    @dataclass
    class Word:
        text: str

        def __post_init__(self):
            {"known": 1}[self.text]

    contract = Contract(Service(model, input=Word), max_depth=9)
    with pytest.raises(InputError, match="KeyError: 'unknown'"):
        contract.read(body({"text": "unknown"}))


def test_a_client_is_told_one_line():
    def known(word):
        raise ValueError("of two\nlines")

    contract = Contract(
        Service(model, input=Annotated[str, AfterValidator(known)]), max_depth=9
    )
    with pytest.raises(Refusal) as found:
        contract.read(body("unknown"))
    assert found.value.message == ("input: value error, of two; GET /schema says more")


@pytest.mark.parametrize(
    "error",
    [
        *RAISED,
        eb.ServerFullError("x"),
        ServerClosedError("x"),
        DeadlineError("x"),
        ClientDisconnect(),
        Refusal(404, "not_found", "x"),
    ],
)
def test_what_encode_raises_is_the_fault_of_the_server(error):
    def encode(answer):
        raise error

    contract = Contract(Service(model, encode=encode), max_depth=9)
    with pytest.raises(ServiceError, match="encode of the service raised") as found:
        contract.write(3)
    assert found.value.__cause__ is error
    assert refusal_of(found.value).status == 500
