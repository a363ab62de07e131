"""The ASGI application without the server process, as other ASGI servers run it."""

import asyncio
import copy
import json
import pickle
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Annotated

import pytest
from asking_models import embed, make_params
from pydantic import BaseModel, Field
from served_jobs import cold, model, service
from starlette.applications import Starlette
from starlette.routing import Mount

import edbatch as eb
from edbatch.errors import ServiceError
from edbatch.http import Service, body, history
from edbatch.http import app as app_module
from edbatch.http.app import create_app
from edbatch.http.body import read_body
from edbatch.http.contract import Contract
from edbatch.http.daemon_thread import in_daemon_thread
from edbatch.http.history import History
from edbatch.http.limits import Limits
from edbatch.http.model_error import InputError, guarded_batch
from edbatch.http.refusal import Refusal
from edbatch.http.request_log import LOG, JsonLines
from edbatch.waves.runner import WaveRunner

HEADERS = [(b"content-type", b"application/json")]


@pytest.fixture(autouse=True)
def coarse():
    with eb.use_tiers("coarse"):
        yield


async def ask(app, method, path, *pieces, headers=HEADERS):
    """Sends a request body in pieces; returns the status and JSON of the answer."""
    sent, left = [], list(pieces) or [b""]

    async def receive():
        if not left:
            await asyncio.Event().wait()
        piece = left.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(left)}

    async def send(message):
        sent.append(message)

    scope = {
        **{"type": "http", "method": method, "path": path, "headers": headers},
        **{"query_string": b"", "client": ("test", 1), "http_version": "1.1"},
    }
    await app(scope, receive, send)
    text = b"".join(each.get("body", b"") for each in sent)
    return sent[0]["status"], json.loads(text)


async def run(app, job):
    return await ask(app, "POST", "/v1/run", json.dumps({"input": job}).encode())


def test_it_is_ready_once_it_is_warm(monkeypatch):
    go_on = threading.Event()
    warm_up = eb.Server.warm_up

    def slow(self, sample):
        go_on.wait(60)
        return warm_up(self, sample)

    monkeypatch.setattr(eb.Server, "warm_up", slow)

    async def main(app):
        async with app.router.lifespan_context(app):
            await asyncio.sleep(0.05)
            early = await ask(app, "GET", "/readyz")
            refused = await run(app, {"words": [1]})
            alive = await ask(app, "GET", "/healthz")
            go_on.set()
            while (await ask(app, "GET", "/readyz"))[0] != 200:
                await asyncio.sleep(0.01)
            return early, refused, alive, await run(app, {"words": [1]})

    with eb.Server(guarded_batch(model, None), make_params()) as server:
        early, refused, alive, late = asyncio.run(main(create_app(server, service)))
    assert early == (503, {"phase": "warming up"}) and alive[0] == 200
    assert (refused[0], refused[1]["error"]["code"]) == (503, "warming_up")
    assert late[0] == 200 and late[1]["output"]["name"] == "0 steps"


def test_mounted_in_another_application_it_warms_up_at_its_first_request():
    async def main(app):
        outer = Starlette(routes=[Mount("/model", app)])
        async with outer.router.lifespan_context(outer):
            early = await ask(outer, "GET", "/model/readyz")
            while (await ask(outer, "GET", "/model/readyz"))[0] != 200:
                await asyncio.sleep(0.01)
            job = json.dumps({"input": {"words": [1]}}).encode()
            return early, await ask(outer, "POST", "/model/v1/run", job)

    with eb.Server(guarded_batch(model, None), make_params()) as server:
        early, late = asyncio.run(main(create_app(server, service)))
    assert early == (503, {"phase": "warming up"})
    assert late[0] == 200 and late[1]["output"]["name"] == "0 steps"


async def become_ready(app, prefix=""):
    for _ in range(2000):
        if (await ask(app, "GET", f"{prefix}/readyz"))[0] == 200:
            return True
        await asyncio.sleep(0.01)
    return False


@pytest.mark.parametrize("loops", ["one", "several"])
def test_an_application_that_starts_again_gets_ready(loops, monkeypatch):
    """Even if it ended during warm-up; the history continues."""
    monkeypatch.setattr(app_module, "_TICK_S", 0.01)

    async def once(app, ends_early):
        async with app.router.lifespan_context(app):
            await asyncio.sleep(0)
            if ends_early:
                return
            assert await become_ready(app)
            begun = ticks[0]
            while ticks[0] < begun + 3:
                await asyncio.sleep(0.01)

    async def all_of_them(app):
        for ends_early in (True, False, False):
            await once(app, ends_early)

    with eb.Server(guarded_batch(model, None), make_params()) as server:
        app, ticks = create_app(server, service), [0]
        tick = app.state.endpoints.tick

        def counted():
            ticks[0] += 1
            tick()

        monkeypatch.setattr(app.state.endpoints, "tick", counted)
        if loops == "one":
            asyncio.run(all_of_them(app))
        else:
            for ends_early in (True, False, False):
                asyncio.run(once(app, ends_early))


def test_a_mounted_application_whose_loop_ended_gets_ready():
    with eb.Server(guarded_batch(model, None), make_params()) as server:
        outer = Starlette(routes=[Mount("/model", create_app(server, service))])
        assert asyncio.run(ask(outer, "GET", "/model/readyz"))[0] == 503
        assert asyncio.run(become_ready(outer, "/model"))


def test_one_thread_warms_up_however_many_loops_ask(monkeypatch):
    go_on, begun = threading.Event(), []

    def slow(self, sample):
        begun.append(sample)
        go_on.wait(60)

    monkeypatch.setattr(eb.Server, "warm_up", slow)
    with eb.Server(guarded_batch(model, None), make_params()) as server:
        app = create_app(server, service)
        for _ in range(5):
            assert asyncio.run(ask(app, "GET", "/readyz"))[0] == 503
        assert len(begun) == 1
        go_on.set()
        assert asyncio.run(become_ready(app))
        assert len(begun) == 1


@pytest.mark.parametrize("prefix", ["", "/model"])
def test_what_programs_ask_for_often_is_not_in_the_log(prefix, caplog):
    with eb.Server(guarded_batch(model, None), make_params()) as server:
        app = create_app(server, cold)
        outer = Starlette(routes=[Mount("/model", app)]) if prefix else app
        with caplog.at_level("INFO", LOG.name):
            for path in ("/readyz", "/v1/stats", "/schema"):
                asyncio.run(ask(outer, "GET", prefix + path))
    lines = [each.fields for each in caplog.records if each.msg == "request"]
    assert [each["path"] for each in lines] == [f"{prefix}/schema"]


def test_errors_of_inputs_are_copied():
    try:
        raise ValueError("no such word")
    except ValueError as error:
        found = InputError(error)
    for each in (copy.copy(found), pickle.loads(pickle.dumps(found))):
        assert type(each) is InputError
        assert (str(each), each.described) == (str(found), found.described)


@pytest.mark.parametrize("level", ["INFO", "DEBUG"])
def test_what_the_model_raises_is_in_the_log(level, caplog):
    async def main(app):
        async with app.router.lifespan_context(app):
            await asyncio.sleep(0)
            return await run(app, {"words": [1], "steps": 2, "fails_at": 1})

    with eb.Server(guarded_batch(model, None), make_params()) as server:
        app = create_app(server, cold)
        with caplog.at_level(level, LOG.name):
            status, _ = asyncio.run(main(app))
    [line] = [each.fields for each in caplog.records if each.msg == "request"]
    assert (status, line["code"]) == (422, "input_failed")
    assert re.fullmatch(
        r"ValueError: told to fail \(served_jobs\.py:\d+\)", line["error"]
    )
    traced = [each for each in caplog.records if each.msg == "the model raised"]
    assert [each.fields["id"] for each in traced] == [line["id"]] * (level == "DEBUG")
    for each in traced:
        assert "second line" in JsonLines().format(each)


def test_a_wave_that_fails_is_the_servers_fault(monkeypatch):
    launch, failures = WaveRunner.launch, [MemoryError("SECRET")]

    def once(self, *arguments, **options):
        if failures:
            raise failures.pop()
        return launch(self, *arguments, **options)

    async def main(app):
        async with app.router.lifespan_context(app):
            await asyncio.sleep(0)
            monkeypatch.setattr(WaveRunner, "launch", once)
            first = await run(app, {"words": [1], "steps": 2})
            return first, await run(app, {"words": [1], "steps": 2})

    with eb.Server(guarded_batch(model, None), make_params()) as server:
        first, second = asyncio.run(main(create_app(server, cold)))
    assert first[0] == 500 and "SECRET" not in json.dumps(first)
    assert second[0] == 200


@pytest.mark.parametrize(
    ("where", "error"),
    [
        *(("decode", SystemExit), ("model", SystemExit), ("encode", SystemExit)),
        ("model", KeyboardInterrupt),  # in a thread that Ctrl-C does not reach
    ],
)
def test_what_ends_a_program_ends_one_request(where, error):
    """It is raised in the server's thread or in the event loop of all requests."""

    def end_if(own, value):
        if own == where and (value["words"] if own != "encode" else value["name"])[
            -1
        ] in (3, "!"):
            raise error
        return value

    def own_model(params, job):
        end_if("model", job)
        name = "!" if job["words"] == [3] else "fine"
        return {"state": embed(params, job["words"][0])[0], "name": name}

    own = Service(
        own_model,
        decode=lambda job: end_if("decode", job),
        encode=lambda answer: end_if("encode", {"name": answer["name"]}),
    )

    async def main(app):
        async with app.router.lifespan_context(app):
            await asyncio.sleep(0)
            bad = await run(app, {"words": [3]})
            return bad, await run(app, {"words": [1]})

    with eb.Server(guarded_batch(own_model, None), make_params()) as server:
        bad, good = asyncio.run(main(create_app(server, own)))
    assert bad[0] == (500 if where == "encode" else 422)
    assert where == "encode" or error.__name__ in bad[1]["error"]["message"]
    assert good == (200, {"output": {"name": "fine"}})


def test_the_slowest_turns_are_told():
    async def main(app):
        async with app.router.lifespan_context(app):
            await asyncio.sleep(0)
            await run(app, {"words": [1], "steps": 2})
            return await ask(app, "GET", "/v1/stats")

    with eb.Server(guarded_batch(model, None), make_params()) as server:
        status, body = asyncio.run(main(create_app(server, cold)))
    turns = body["slowest_turns"]
    assert status == 200 and sum(each["started"] for each in turns) == 1
    times = [each["total_ms"] for each in turns]
    assert times == sorted(times, reverse=True)
    assert all(each["run_ms"] >= 0 for each in turns)


def test_a_server_whose_thread_has_ended_is_not_healthy():
    async def main(app, server):
        async with app.router.lifespan_context(app):
            await asyncio.sleep(0)
            server.close()
            paths = ("/healthz", "/readyz")
            found = [await ask(app, "GET", path) for path in paths]
            return found, await run(app, {"words": [1]})

    server = eb.Server(guarded_batch(model, None), make_params())
    found, refused = asyncio.run(main(create_app(server, cold), server))
    assert [status for status, _ in found] == [503, 503]
    assert (refused[0], refused[1]["error"]["code"]) == (503, "shutting_down")


def test_a_body_that_comes_too_slowly(monkeypatch):
    monkeypatch.setattr(body, "_READ_S", 0.05)

    class Slow:
        headers = MappingProxyType({})

        async def stream(self):
            yield b'{"input": '
            await asyncio.sleep(60)

    with pytest.raises(Refusal, match=r"within 0\.05 seconds") as caught:
        asyncio.run(read_body(Slow(), 1000))
    assert caught.value.status == 408


def test_a_body_with_two_lengths():
    """A proxy may have used the other length, and may send more after the body."""
    headers = [*HEADERS, (b"content-length", b"2"), (b"transfer-encoding", b"chunked")]

    async def main(app):
        async with app.router.lifespan_context(app):
            await asyncio.sleep(0)
            return await ask(app, "POST", "/v1/run", b"{}", headers=headers)

    with eb.Server(guarded_batch(model, None), make_params()) as server:
        status, content = asyncio.run(main(create_app(server, cold)))
    assert (status, content["error"]["code"]) == (400, "two_lengths")


@pytest.mark.parametrize("declared", ["1001", "9" * 30])
def test_a_body_that_says_that_it_is_too_long_and_does_not_come(monkeypatch, declared):
    monkeypatch.setattr(body, "_DISCARD_S", 0.05)

    class Late:
        headers = MappingProxyType({"content-length": declared})

        async def stream(self):
            yield b"{"
            await asyncio.sleep(60)

    with pytest.raises(Refusal, match="more than 1,000 bytes") as caught:
        asyncio.run(read_body(Late(), 1000))
    assert caught.value.status == 413


def test_the_default_deadline_is_for_requests_that_name_none():
    limits = Limits(deadline_ms=30)
    endless = {"words": [1], "steps": 10**9}

    async def main(app):
        async with app.router.lifespan_context(app):
            await asyncio.sleep(0)
            late = await run(app, endless)
            own = {"input": {"words": [1]}, "deadline_ms": 60_000}
            return late, await ask(app, "POST", "/v1/run", json.dumps(own).encode())

    with eb.Server(guarded_batch(model, None), make_params()) as server:
        late, own = asyncio.run(main(create_app(server, cold, limits)))
    assert late[0] == 504 and own[0] == 200


def test_large_bodies_are_read_beside_the_event_loop():
    filler = [b" " * 10_000] * 5
    text = b'{"input": {"words": [1]}', *filler, b"}"

    async def main(app):
        async with app.router.lifespan_context(app):
            await asyncio.sleep(0)
            return await ask(app, "POST", "/v1/run", *text)

    with eb.Server(guarded_batch(model, None), make_params()) as server:
        assert asyncio.run(main(create_app(server, cold)))[0] == 200


@dataclass(frozen=True)
class Node:
    below: tuple["Node", ...] = ()


def test_trees_as_deep_as_may_be():
    contract = Contract(Service(model, input=Node), 190)

    def text(depth):  # each node opens two brackets
        inner = '{"below": [' * depth + "{}" + "]}" * depth
        return f'{{"input": {inner}}}'.encode()

    found, depth = contract.read(text(94)).instance, 0
    while found.below:
        found, depth = found.below[0], depth + 1
    assert depth == 94
    with pytest.raises(Refusal, match="192 deep but may be 190"):
        contract.read(text(95))


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (KeyError, KeyError),
        (StopIteration, RuntimeError),  # a future cannot hold it
        (SystemExit, RuntimeError),  # it would end the event loop
        (BaseException, RuntimeError),  # like a panic in a Rust library
    ],
)
def test_work_in_a_daemon_thread(error, told):
    def fail():
        raise error("a")

    async def main():
        assert await in_daemon_thread(lambda: threading.current_thread().daemon)
        with pytest.raises(told):
            await asyncio.wait_for(in_daemon_thread(fail), 60)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json", 200),
        ("application/json; version=1", 200),
        ('Application/JSON; v=1; charset="UTF-8";', 200),
        ("application/json; charset=latin-1", 415),
        ("application/json; charset=utf_8", 200),
        ('application/json; title="a;charset=latin-1"', 200),
        ("application/json; charset*" + "9" * 150 + "=x", 415),
        ("text/plain; charset=utf-8", 415),
        ("", 415),
        # Python's email package takes three seconds for some, and raises for others.
        ('application/json; x="' + ";" * 60_000, 415),
        ("application/json; charset*" + "9" * 5000 + "=x", 415),
        ("application/json; charset*0*=x; charset*=y", 415),
    ],
)
def test_content_types(kind, status):
    async def main(app):
        async with app.router.lifespan_context(app):
            headers = [(b"content-type", kind.encode()), (b"content-encoding", b"")]
            job = json.dumps({"input": {"words": [1]}}).encode()
            while (await ask(app, "GET", "/readyz"))[0] != 200:
                await asyncio.sleep(0.01)
            return await ask(app, "POST", "/v1/run", job, headers=headers)

    with eb.Server(guarded_batch(model, None), make_params()) as server:
        found, _ = asyncio.run(main(create_app(server, cold)))
    assert found == status


@pytest.mark.parametrize(
    "accepted",
    [
        "application/openmetrics-text;version=zzz",
        "text/plain;version=abc",
        "text/plain;version=" + "9" * 5000,
        "application/openmetrics-text;version=1.0.0",
    ],
)
def test_metrics_for_whoever_asks(accepted):
    sent = []

    async def send(message):
        sent.append(message)

    async def main(app):
        scope = {
            **{"type": "http", "method": "GET", "path": "/metrics"},
            **{"query_string": b"", "client": ("test", 1), "http_version": "1.1"},
            "headers": [(b"accept", accepted.encode())],
        }
        await app(scope, None, send)

    with eb.Server(guarded_batch(model, None), make_params()) as server:
        asyncio.run(main(create_app(server, cold)))
    assert sent[0]["status"] == 200
    assert b"edbatch" in b"".join(each.get("body", b"") for each in sent)


def test_no_path_is_redirected_to_the_host_that_a_client_names():
    with eb.Server(guarded_batch(model, None), make_params()) as server:
        app = create_app(server, cold)
        status, answer = asyncio.run(ask(app, "POST", "/v1/run/"))
    assert status == 404 and "POST /v1/run" in answer["error"]["message"]


Wrong = Annotated[Sequence[int | float], Field(min_length=1)]


@dataclass
class Branch:
    numbers: Wrong = (1, 2)
    below: "list[Branch]" = field(default_factory=list)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (list[int | float], b"[%b]"),
        (tuple[int | float, ...], b"[%b]"),
        (set[int | float], b"[%b]"),
        (Wrong, b"[%b]"),
        (Branch, b'{"below": [{"numbers": [%b]}]}'),
        (dict[str, list[int | float]], b'{"a": [%b]}'),
    ],
)
def test_a_list_is_read_to_its_first_wrong_element(kind, text):
    contract = Contract(Service(model, input=kind), 9)
    wrong = text % b",".join([b"1", *[b"{}"] * 100_000])
    with pytest.raises(
        Refusal, match=r"input.*\.1\.int: .*\(1 more like it\); GET /sc"
    ):
        contract.read(b'{"input": %b}' % wrong)
    found = contract.read(b'{"input": %b, "priority": 2}' % (text % b"1, 2.5"))
    assert found.priority == 2
    if kind is Branch:
        assert found.instance == Branch(below=[Branch(numbers=[1, 2.5])])
    elif kind is Wrong:
        assert list(found.instance) == [1, 2.5]


class Named(BaseModel):
    """A model whose fields are named like parts of Pydantic's own schemas."""

    type: list[int]
    default: list[int]
    metadata: dict[str, list[int]] = {"type": [1]}


def test_fields_may_be_named_as_parts_of_a_schema():
    contract = Contract(Service(model, input=Named), 9)
    found = contract.read(b'{"input": {"type": [1, 2], "default": [3]}}').instance
    assert found == Named(type=[1, 2], default=[3]) and found.metadata == {"type": [1]}
    wrong = b"[%b]" % b",".join([b"[]"] * 50_000)
    for text in (b'"type": %b, "default": []', b'"type": [], "default": %b'):
        with pytest.raises(Refusal, match=r"input\.(type|default)\.0: [^(]*; GET"):
            contract.read(b'{"input": {%b}}' % (text % wrong))


def test_very_many_errors_are_counted_and_not_described():
    contract = Contract(Service(model, input=dict[str, int]), 9)
    wrong = b",".join([b'"%d": []' % k for k in range(100_000)])
    with pytest.raises(Refusal, match=r"schema in 100,000 places, too many to list"):
        contract.read(b'{"input": {%b}}' % wrong)


def test_a_schema_that_is_no_json():
    @dataclass
    class Limited:
        most: float = float("inf")

    with pytest.raises(ServiceError, match="such as a default or a bound of"):
        Contract(replace(cold, input=Limited), 9)


def test_an_error_of_an_endpoint_is_logged_as_what_it_is(monkeypatch, caplog):
    def fails(self):
        raise ValueError("not now")

    with eb.Server(guarded_batch(model, None), make_params()) as server:
        app = create_app(server, cold)
        monkeypatch.setattr(eb.Server, "stats", fails)
        with caplog.at_level("DEBUG", LOG.name), pytest.raises(ValueError, match="now"):
            asyncio.run(ask(app, "GET", "/v1/stats"))
        monkeypatch.undo()
    told = [each.fields for each in caplog.records if each.msg == "request"]
    assert [each["status"] for each in told] == [500]


def test_the_history_goes_on_where_the_clock_is_set_back(monkeypatch):
    with eb.Server(guarded_batch(model, None), make_params()) as server:
        stats = server.stats()
    kept = History()
    kept.tick(stats, 0)
    last = kept.seconds(0)[-1]["time"]
    monkeypatch.setattr(history.time, "time", lambda: last - 600)
    kept.tick(stats, 0)
    assert len(kept.seconds(last)) == 1
