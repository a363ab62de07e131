"""The command `edbatch serve`, as clients see it."""

import json
import random
import re
import socket
import threading
import time

import numpy as np
import pytest
from asking_models import make_params
from malformed_bodies import malformed_bodies
from prometheus_client.parser import text_string_to_metric_families
from served_jobs import expected
from served_process import JSON, ServeProcess, wait_until

ENDLESS = {"words": [1], "steps": 10**9}


@pytest.fixture(scope="module")
def params():
    return make_params(3)


@pytest.fixture(scope="module")
def server(tmp_path_factory, params):
    """One server process for all tests of this module."""
    folder = tmp_path_factory.mktemp("serve")
    np.savez(folder / "p.npz", **params)
    options = ("--max-in-flight", "16", "--max-body-bytes", "300000")
    found = ServeProcess(
        folder, "--model", "served_jobs:service", "--params", "p.npz", *options
    )
    yield found
    found.end()


def jobs(seed, count):
    rng = random.Random(seed)
    for _ in range(count):
        words = [rng.randrange(11) for _ in range(rng.randrange(1, 6))]
        yield {"words": words, "steps": rng.choice([0, 1, 2, 3, 12])}


def assert_right(params, job, found):
    status, answer = found
    assert status == 200, answer
    right = expected(params, job)
    assert answer["output"]["name"] == right["name"]
    np.testing.assert_allclose(answer["output"]["h"], right["h"], rtol=1e-4, atol=1e-5)


def message(status, found, expected_status, code):
    assert (status, found["error"]["code"]) == (expected_status, code), found
    text = found["error"]["message"]
    assert text and "\n" not in text and "Traceback" not in text
    return text


def test_answers_are_those_of_the_model(server, params):
    for job in jobs(0, 12):
        assert_right(params, job, server.run(job))


def test_two_clients_at_once_get_their_own_answers(server, params):
    failures = []

    def client(seed):
        connection = server.connect()  # one connection, kept alive
        try:
            for job in jobs(seed, 25):
                connection.request("POST", "/v1/run", json.dumps({"input": job}), JSON)
                answer = connection.getresponse()
                assert_right(params, job, (answer.status, json.loads(answer.read())))
        except BaseException as error:
            failures.append(error)
        finally:
            connection.close()

    clients = [threading.Thread(target=client, args=(seed,)) for seed in (1, 2)]
    for each in clients:
        each.start()
    for each in clients:
        each.join()
    assert not failures, failures


def test_malformed_bodies_get_a_sentence_and_the_server_goes_on(server, params):
    before = server.stats()["totals"]
    for name, body in malformed_bodies(204):
        status, answer = server.post(body)
        assert 400 <= status < 500, (name, status, answer)
        text = answer["error"]["message"]
        assert re.fullmatch(r"[^\n]{10,500}", text), (name, text)
        assert "Traceback" not in text and "pydantic" not in text, (name, text)
    after = server.stats()["totals"]
    assert after["malformed"] - before["malformed"] == 204
    assert after["submitted"] == before["submitted"]
    for job in jobs(3, 3):
        assert_right(params, job, server.run(job))


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Content-Type": "text/plain"}, "not_json"),
        ({"Content-Type": "application/json; charset=latin-1"}, "not_utf8"),
        ({"Content-Encoding": "gzip"}, "compressed"),
        ({"Content-Type": ""}, "not_json"),
    ],
)
def test_other_kinds_of_content_are_refused(server, headers, code):
    found = server.post({"input": {"words": [1]}}, **headers)
    message(*found, 415, code)


def test_content_may_say_that_it_is_utf8(server):
    kind = {"Content-Type": "application/json; charset=UTF-8"}
    assert server.post({"input": {"words": [1]}}, **kind)[0] == 200


def chunks(size):
    yield b'{"input": {"words": [1'
    for _ in range(size // 1000):
        yield b", 1" + b" " * 997
    yield b"]}}"


@pytest.mark.parametrize("size", [400_000, 3_000_000, 10_000_000])
def test_large_bodies_are_refused_with_and_without_their_length(server, size):
    text = b"".join(chunks(size))
    try:
        found = server.post(text)
    except (BrokenPipeError, ConnectionResetError):
        assert size > 16 * 300_000  # the server does not read forever
    else:
        assert "300,000 bytes" in message(*found, 413, "body_too_large")
    if size < 16 * 300_000:
        status, _, text = server.request("POST", "/v1/run", chunks(size), JSON)
        message(status, json.loads(text), 413, "body_too_large")
    assert server.run({"words": [1]})[0] == 200


def test_other_methods_and_paths(server):
    for method in ("GET", "PUT", "DELETE", "PATCH"):
        status, headers, body = server.request(method, "/v1/run")
        assert "POST" in message(status, json.loads(body), 405, "wrong_method")
        assert headers["allow"] == "POST"
    for path in ("/v1/runs", "/v2/run", "/..%2f..%2fetc/passwd", "/page/status.html"):
        status, body = server.get(path)
        message(status, json.loads(body), 404, "not_found")
    assert server.request("POST", "/metrics")[0] == 405


def test_a_poisoned_request_fails_alone(server, params):
    found = []

    def poisoned():
        found.append(server.run({"words": [1], "steps": 30, "fails_at": 20}))

    thread = threading.Thread(target=poisoned)
    thread.start()
    for job in jobs(4, 4):
        assert_right(params, job, server.run(job))
    thread.join()
    text = message(*found[0], 422, "input_failed")
    assert text.endswith("ValueError: told to fail")  # only the first line
    text = message(*server.run({"words": [11]}), 422, "input_failed")
    assert "nobody says eleven" in text


def test_errors_of_the_server_tell_nothing_but_are_in_its_log(server):
    headers = {**JSON, "X-Request-Id": "seven-steps"}
    body = json.dumps({"input": {"words": [1], "steps": 7}})
    status, given, text = server.request("POST", "/v1/run", body, headers)
    found = message(status, json.loads(text), 500, "internal_error")
    assert "SECRET" not in found and given["x-request-id"] == "seven-steps"
    [error] = wait_until(  # another thread writes it
        lambda: [each for each in server.log() if each["level"] == "error"]
    )
    assert error["id"] == "seven-steps"
    assert "SECRET of the server" in error["error"]


def test_an_answer_that_is_not_finite(server):
    found = server.run({"words": [1], "steps": 8})
    assert "neither" not in message(*found, 422, "not_finite")


def test_a_deadline_that_passes(server):
    found = server.run(ENDLESS, deadline_ms=60)
    assert "60 ms" in message(*found, 504, "deadline_passed")
    assert server.run({"words": [1]}, deadline_ms=60_000, priority=5)[0] == 200
    wait_until(lambda: server.stats()["now"]["in_flight"] == 0)


def test_a_client_that_hangs_up_frees_its_rows(server):
    before = server.stats()["totals"]["cancelled"]
    connections = [server.connect() for _ in range(3)]
    for each in connections:
        each.request("POST", "/v1/run", json.dumps({"input": ENDLESS}), JSON)
    wait_until(lambda: server.stats()["now"]["in_flight"] == 3)
    for each in connections:
        each.close()
    wait_until(lambda: server.stats()["now"]["in_flight"] == 0)
    assert server.stats()["totals"]["cancelled"] == before + 3
    wait_until(lambda: sum(each.get("status") == 499 for each in server.log()) == 3)


def test_bodies_that_are_cut_short_hold_nothing(server):
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        head = b"POST /v1/run HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        raw.sendall(head + b'Content-Length: 100\r\n\r\n{"input": ')
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.sendall(b"\x16\x03\x01 no HTTP at all\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 400")
    assert server.run({"words": [1]})[0] == 200


def test_answers_do_not_wait_for_receipts(server):
    """If small packets waited for acknowledgements, each answer would take 40 ms."""
    connection = server.connect()
    times = []
    for _ in range(80):
        began = time.perf_counter()
        connection.request("POST", "/v1/run", b'{"input": {"words": [1]}}', JSON)
        assert connection.getresponse().read()
        times.append(time.perf_counter() - began)
    connection.close()
    assert min(times[40:]) < 0.035


def test_health_readiness_and_schema(server):
    assert json.loads(server.get("/healthz")[1]) == {"status": "ok", "phase": "ready"}
    status, body = server.get("/readyz")
    assert (status, json.loads(body)) == (200, {"phase": "ready"})
    found = json.loads(server.get("/schema")[1])
    assert found["model"] == "jobs"
    [example] = found["request"]["examples"]
    assert server.post(example)[0] == 200
    words = found["request"]["$defs"]["Job"]["properties"]["words"]
    assert words["items"]["exclusiveMaximum"] == 12
    assert found["answer"]["properties"]["output"]["type"] == "object"


def samples(server):
    status, headers, body = server.request("GET", "/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain")
    return {
        (each.name, *sorted(each.labels.items())): each.value
        for family in text_string_to_metric_families(body.decode())
        for each in family.samples
    }


def test_metrics_count_what_happened(server):
    before = samples(server)
    for _ in range(3):
        server.run({"words": [1], "steps": 2})
    server.run({"words": [1], "steps": 3, "fails_at": 1})
    server.post(b"{")
    after = samples(server)

    def more(*name):
        return after[name] - before.get(name, 0)

    assert more("edbatch_requests_total", ("outcome", "answered")) == 3
    assert more("edbatch_requests_total", ("outcome", "failed")) == 1
    assert more("edbatch_request_latency_seconds_count") == 3
    assert more("edbatch_http_answers_total", ("status", "200")) == 3
    assert more("edbatch_http_answers_total", ("status", "422")) == 1
    assert more("edbatch_http_answers_total", ("status", "400")) == 1
    assert more("edbatch_waves_total") >= 3
    assert after[("edbatch_requests_in_flight",)] == 0
    assert after[("process_cpu_seconds_total",)] > 0


def test_the_history_of_the_page(server):
    since = server.stats()["seconds"][-1]["time"]
    assert server.run({"words": [1, 2, 3], "steps": 2})[0] == 200

    def answered():
        body = server.get(f"/v1/stats?since={since}")[1]
        return [each for each in json.loads(body)["seconds"] if each["answered"]]

    [second] = wait_until(answered)
    assert second["time"] > since and second["width"] >= 1
    assert 0 < second["p50"] <= second["p99"]
    assert server.stats()["minute"]["p50"] > 0
    status, body = server.get("/v1/stats?since=soon")
    message(status, json.loads(body), 400, "no_number")


def test_the_page_asks_nobody_else(server):
    status, headers, body = server.request("GET", "/")
    assert status == 200 and headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in headers["content-security-policy"]
    files = re.findall(rb'(?:href|src)="([^"]+)"', body)
    for each in (*files, b"chart.js"):
        if each != b"data:,":
            # Relative, so that the page can be served below another path.
            assert not each.startswith(b"/")
            assert server.get(f"/{each.decode()}")[0] == 200, each
    for name in ("/", "/status.css", "/status.js", "/chart.js"):
        text = server.get(name)[1].replace(b"http://www.w3.org/2000/svg", b"")
        assert b"http:" not in text and b"https:" not in text and b"url(" not in text


def test_the_log_has_a_line_for_each_request_and_no_bodies(server):
    headers = {**JSON, "X-Request-Id": "two words"}
    body = b'{"input": {"words": [1], "colour": "SECRETBODY"}}'
    _, given, _ = server.request("POST", "/v1/run?token=SECRETQUERY", body, headers)
    number = given["x-request-id"]
    assert re.fullmatch("[0-9a-f]{32}", number)  # not the client's two words
    [line] = wait_until(lambda: [x for x in server.log() if x.get("id") == number])
    lines = server.log()
    assert line["method"] == "POST" and line["path"] == "/v1/run"
    assert (line["status"], line["code"]) == (422, "schema_mismatch")
    assert line["ms"] > 0 and line["level"] == "info"
    text = server.errors.read_text()
    assert "SECRETBODY" not in text and "SECRETQUERY" not in text
    assert not any(each.get("path") == "/metrics" for each in lines)
    first = [each["message"] for each in lines if each["logger"] == "edbatch.http"][:3]
    assert first == ["listening", "warming up", "ready"]
