"""How `edbatch serve` ends: SIGTERM, a second signal, and requests in flight."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sysconfig
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from asking_models import make_params
from served_jobs import EXAMPLES, expected
from served_process import JSON, LIMIT_S, TESTS, ServeProcess, wait_until

ENDLESS = {"words": [1], "steps": 10**9}


@pytest.fixture
def serve(tmp_path):
    started = []

    def start(*options, **more):
        started.append(ServeProcess(tmp_path, *options, **more))
        return started[-1]

    yield start
    for each in started:
        each.end()


class Client(threading.Thread):
    """Sends requests, each on a separate connection, until the server is gone."""

    def __init__(self, server, number):
        super().__init__()
        self.server, self.number = server, number
        self.found = []  # (example, status, answer); None once nobody listens

    def run(self):
        k = self.number
        while not self.found or self.found[-1] is not None:
            k = (k + 1) % len(EXAMPLES)
            job = json.dumps({"input": EXAMPLES[k]})
            connection = self.server.connect()
            try:
                connection.connect()
            except OSError:
                self.found.append(None)
                break
            try:
                connection.request("POST", "/v1/run", job, JSON)
                answer = connection.getresponse()
                self.found.append((k, answer.status, json.loads(answer.read())))
            except (OSError, http.client.HTTPException) as error:
                self.found.append((k, 0, error))
            finally:
                connection.close()


def test_sigterm_under_load_loses_nothing_that_was_taken(serve):
    server = serve("--model", "served_jobs:service")
    params = make_params(0)
    rights = [expected(params, job) for job in EXAMPLES]
    clients = [Client(server, k) for k in range(4)]
    for each in clients:
        each.start()
    # A slow request is in flight when the signal arrives.
    long = {"words": [1], "steps": 1500}
    answers = []
    slow = threading.Thread(target=lambda: answers.append(server.run(long)))
    slow.start()
    wait_until(lambda: all(len(each.found) > 5 for each in clients))
    wait_until(lambda: server.stats()["now"]["in_flight"] > 0)
    server.send_signal()
    assert server.wait() == 0
    slow.join()
    for each in clients:
        each.join()
    [(status, answer)] = answers
    assert status == 200 and answer["output"]["name"] == "1500 steps"
    found = [each for client in clients for each in client.found if each is not None]
    answered = [(k, answer["output"]) for k, status, answer in found if status == 200]
    for k, output in answered:
        assert output["name"] == rights[k]["name"]
        np.testing.assert_allclose(output["h"], rights[k]["h"], rtol=1e-4, atol=1e-5)
    # The rest got an error message, or arrived after the socket was closed.
    refused = [answer for _, status, answer in found if status == 503]
    cut = [error for _, status, error in found if status == 0]
    assert len(answered) + len(refused) + len(cut) == len(found)
    assert len(cut) <= len(clients)
    assert all(each["error"]["code"] == "shutting_down" for each in refused)
    lines = [each["message"] for each in server.log()]
    assert "shutting down" in lines and "requests without an answer" not in lines
    taken = [
        each
        for each in server.log()
        if each["message"] == "request" and each.get("path") == "/v1/run"
    ]
    counted = sum(each["status"] == 200 for each in taken)
    assert counted == len(answered) + 1  # every answer that the server sent has arrived
    assert {each["status"] for each in taken} <= {200, 503}


def endless(server, answers):
    def client():
        try:
            answers.append(server.run(ENDLESS))
        except (OSError, http.client.HTTPException) as error:
            answers.append(error)

    thread = threading.Thread(target=client)
    thread.start()
    return thread


def test_a_full_server_refuses_and_drains_with_a_limit(serve):
    server = serve(
        *("--model", "served_jobs:make_service", "--drain-s", "1.5"),
        *("--max-in-flight", "1", "--max-waiting", "1", "--policy", "agenda"),
    )
    answers = []
    threads = [endless(server, answers)]
    wait_until(lambda: server.stats()["now"]["in_flight"] == 1)
    threads.append(endless(server, answers))
    wait_until(lambda: server.stats()["now"]["waiting"] == 1)
    body = json.dumps({"input": {"words": [1]}})
    status, headers, text = server.request("POST", "/v1/run", body, JSON)
    assert (status, headers["retry-after"]) == (429, "1")
    assert json.loads(text)["error"]["code"] == "too_many_requests"
    server.send_signal(signal.SIGINT)  # as Ctrl-C does
    # The probes are still answered while it drains.
    wait_until(lambda: server.get("/readyz")[0] == 503, 1)
    assert server.get("/healthz")[0] == 200
    status, headers, text = server.request("POST", "/v1/run", body, JSON)
    assert (status, headers["retry-after"]) == (503, "1")
    assert headers["connection"] == "close"  # so nobody reuses it
    assert server.wait() == 1  # requests were left unanswered
    for each in threads:
        each.join()
    assert [status for status, _ in answers] == [503, 503]
    assert "requests without an answer" in [each["message"] for each in server.log()]


@pytest.mark.parametrize("ignored", [False, True])
def test_a_terminal_that_is_closed(serve, ignored):
    """SIGHUP drains the server, unless it is ignored, as under nohup."""
    # These tests themselves may run under nohup.
    handler = signal.SIG_IGN if ignored else signal.SIG_DFL
    before = signal.signal(signal.SIGHUP, handler)
    try:
        server = serve("--model", "served_jobs:cold")
    finally:
        signal.signal(signal.SIGHUP, before)
    body = json.dumps({"input": {"words": [1]}})
    for _ in range(2):  # both the shell and the kernel send it
        server.send_signal(signal.SIGHUP)
    if ignored:
        assert server.request("POST", "/v1/run", body, JSON)[0] == 200
        server.send_signal(signal.SIGTERM)
    assert server.wait() == 0
    assert ("SIGTERM" if ignored else "SIGHUP") in server.errors.read_text()


def test_a_second_signal_ends_at_once(serve):
    server = serve("--model", "served_jobs:cold", "--drain-s", "100000")
    answers = []
    thread = endless(server, answers)
    wait_until(lambda: server.stats()["now"]["in_flight"] == 1)
    server.send_signal()
    wait_until(lambda: "shutting down" in server.errors.read_text())
    assert server.process.poll() is None
    server.send_signal()
    assert server.wait() == 128 + signal.SIGTERM
    thread.join()
    assert isinstance(answers[0], Exception)


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_a_closed_stream_changes_no_exit_code(serve, tmp_path, closed):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    script = Path(sysconfig.get_path("scripts")) / "edbatch"
    words = [script, "serve", "--model", "served_jobs:cold", "--port", str(port)]
    redirected = ">&-" if closed == "stdout" else "2>&-"
    process = subprocess.Popen(
        ["sh", "-c", f'exec "$@" {redirected}', "sh", *words],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(TESTS)},
    )
    try:
        wait_until(lambda: answers(port))
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.wait()


def answers(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    with closing(connection):
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        except OSError:
            return False


def test_a_body_that_is_half_sent_is_refused_at_the_end(serve):
    server = serve("--model", "served_jobs:cold")
    with closing(server.connect()) as connection:
        connection.putrequest("POST", "/v1/run")
        for name, value in {**JSON, "Content-Length": "100"}.items():
            connection.putheader(name, value)
        connection.endheaders(b'{"input": ')
        time.sleep(0.5)  # until the server has read it
        server.send_signal()
        answer = connection.getresponse()
        assert answer.status == 503
        assert json.loads(answer.read())["error"]["code"] == "shutting_down"
    assert server.wait() == 0
    assert "Traceback" not in server.errors.read_text()


def test_random_numbers_of_requests(serve):
    """They differ between requests, and are the same for the same seed."""
    found = []
    for _ in range(2):
        server = serve("--model", "served_jobs:noisy", "--rng-seed", "3")
        answers = [server.run(1.0) for _ in range(3)]
        assert {status for status, _ in answers} == {200}
        found.append([answer["output"] for _, answer in answers])
        server.end()
    assert len(set(found[0])) == 3 and found[0] == found[1]


def test_a_model_that_does_not_return_is_given_up(serve):
    """Its client gets the usual error; decoding a large body does not delay the end."""
    server = serve("--model", "served_jobs:stuck", "--drain-s", "0.2")
    answers = []

    def client(job, padding):
        body = json.dumps({"input": job}) + " " * padding
        status, _, text = server.request("POST", "/v1/run", body, JSON)
        answers.append((status, json.loads(text)["error"]["code"]))

    jobs = [({"words": [1], "steps": 1}, 0), ({"words": [1], "fails_at": 1}, 20_000)]
    threads = [threading.Thread(target=client, args=each) for each in jobs]
    for each in threads:
        each.start()
    wait_until(lambda: server.stats()["totals"]["submitted"] == 1)
    time.sleep(0.2)  # until the other request is read, which no counter shows
    server.send_signal()
    assert server.wait() == 1
    for each in threads:
        each.join()
    assert answers == 2 * [(503, "shutting_down")]
    assert [line for line in server.log() if line["level"] == "error"] == []
    statuses = {each.get("status") for each in server.log() if "status" in each}
    assert 499 not in statuses and 503 in statuses
