"""Servers in two replicas of Ray Serve, on this machine's loopback address."""

import asyncio
import json
import logging
import os
import socket
import time
import urllib.error
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

import edbatch as eb

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # Ray emits its own warnings
    pytest.mark.skipif(
        find_spec("ray") is None, reason="Ray is missing: pip install 'edbatch[ray]'"
    ),
]

IN_FLIGHT = 16
ENDLESS = {"x": [0.1] * 16, "tolerance": -1.0}  # 20,000 waves
LISTENS = "0A"  # of /proc/net/tcp


def descendants():
    """All descendants of this process, as (pid, start time)."""
    parents, starts = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(folder.name)], starts[int(folder.name)] = int(fields[1]), fields[19]
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return {(pid, starts[pid]) for pid in found if pid != os.getpid()}


def is_running(pid, start):
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] != "Z" and fields[19] == start


def listening(pids):
    """Hexadecimal addresses on which the processes listen."""
    inodes = set()
    for pid in pids:
        for file in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                inodes.add(os.readlink(file).removeprefix("socket:[").rstrip("]"))
            except OSError:
                continue
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return {
        each[1].split(":")[0]
        for each in lines
        if each[3] == LISTENS and each[9] in inodes
    }


@pytest.fixture(scope="module")
def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture(scope="module")
def handle(experiment, port):
    before = descendants()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        patch.setenv("PYTHONPATH", "")  # which the cluster sets
        with experiment.local_cluster(cpus=2, port=port):
            app = experiment.application(max_in_flight=IN_FLIGHT)
            yield experiment.serve.run(app)
            started = descendants() - before
    assert len(started) > 5
    ends = time.monotonic() + 20
    while left := [each for each in started if is_running(*each)]:
        assert time.monotonic() < ends, f"Ray left processes behind: {left}"
        time.sleep(0.2)


@pytest.fixture
def deployment(experiment):
    import ray_deployment

    return ray_deployment


def post(port, body, timeout=60):
    """Sends JSON over HTTP; returns status and answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/", data)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


async def totals(experiment, handle):
    found = (await experiment.describe_all(handle, 2)).values()
    names = ("in_flight", "waiting", "cancelled", "expired", "failed", "waves")
    return {name: sum(each[name] for each in found) for name in names}


async def idle(experiment, handle):
    """Waits until no request runs or waits; returns the counts."""
    async with asyncio.timeout(10):
        while True:
            found = await totals(experiment, handle)
            if found["in_flight"] == found["waiting"] == 0:
                return found
            await asyncio.sleep(0.1)


def test_all_listens_on_the_loopback_address(handle):
    addresses = listening(pid for pid, _ in descendants())
    loopback = {"0100007F", "0000000000000000FFFF00000100007F"}
    assert addresses and addresses <= loopback


def test_answers_of_two_replicas_by_handle_and_http(experiment, handle, port):
    async def run():
        # Each replica has compiled everything it runs before its first answer.
        requests = experiment.sample(1, 200)
        outcome = await experiment.load(experiment.Client(handle), requests, 64, None)
        assert (outcome.answered, outcome.wrong, outcome.retried) == (200, 0, 0)
        described = (await experiment.describe_all(handle, 2)).values()
        assert all(each["answered"] > 50 for each in described)
        assert all(each["compiles"] == 0 for each in described)
        assert all(each["max_ongoing"] == 2 * IN_FLIGHT for each in described)
        assert any(each["width"] > 4 for each in described)

    asyncio.run(run())
    [request] = experiment.sample(2, 1)
    status, answer = post(port, request)
    assert status == 200 and experiment.is_right(request, answer)


@pytest.mark.parametrize(
    ("bad", "error"),
    [({"x": [1.0], "tolerance": 0.1}, ValueError), ({}, KeyError), (None, TypeError)],
)
def test_a_bad_request_fails_alone(experiment, handle, port, bad, error):
    """If a size function of `serve.batch` raised, all later requests would hang."""

    async def run():
        good = experiment.sample(3, 40)
        client = experiment.Client(handle)
        async with asyncio.timeout(60):
            *answers, failed = await asyncio.gather(
                *map(client.ask, good), client.ask(bad), return_exceptions=True
            )
            after = await client.ask(good[0])
        assert isinstance(failed, error)
        for request, answer in zip([*good, good[0]], [*answers, after], strict=True):
            assert experiment.is_right(request, answer)

    asyncio.run(run())
    status, answer = post(port, bad)
    assert status == 422 and answer["error"]


def test_a_body_that_is_not_json(handle, port):
    assert post(port, b"{")[0] == 422


def test_clients_that_give_up_slow_nobody(experiment, handle, port):
    """By handle and by HTTP: their requests end, and the rows are freed."""
    [request] = experiment.sample(4, 1)

    async def waves_of_one(client):
        before = (await idle(experiment, handle))["waves"]
        answer = await client.ask(request)
        return (await idle(experiment, handle))["waves"] - before, answer["steps"]

    async def run():
        client = experiment.Client(handle)
        first, steps = await waves_of_one(client)
        assert first <= steps + 2
        before = await idle(experiment, handle)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.ask(ENDLESS), 0.5)
        with pytest.raises(TimeoutError):
            await asyncio.to_thread(post, port, ENDLESS, timeout=0.5)
        with pytest.raises(eb.DeadlineError, match="within its deadline of 300 ms"):
            await client.ask(ENDLESS, deadline_ms=300)
        after = await idle(experiment, handle)
        assert after["cancelled"] - before["cancelled"] == 4
        assert after["expired"] - before["expired"] == 1
        assert (await waves_of_one(client))[0] == first

    asyncio.run(run())


def test_a_replica_that_dies_loses_no_request(experiment, handle):
    arguments = experiment.Arguments(requests=400, max_in_flight=IN_FLIGHT, seed=5)
    before = asyncio.run(experiment.describe_all(handle, 2))
    outcome = asyncio.run(experiment.kill_one(handle, arguments))
    assert outcome.killed and outcome.lost == []
    assert (outcome.answered, outcome.wrong) == (400, 0)
    # Only requests that the dead replica had taken were resent, not waiting ones.
    assert 0 < outcome.retried <= 2 * IN_FLIGHT < arguments.at_once
    # The new replica was warm before it answered. (The surviving one has met longer
    # requests than those of its sample, in the test above.)
    after = asyncio.run(experiment.describe_all(handle, 2))
    assert [each["compiles"] for pid, each in after.items() if pid not in before] == [0]


def test_a_request_is_sent_so_often_and_not_for_ever(deployment):
    class Handle:
        """A handle whose first two replicas die."""

        calls = 0

        @property
        def answer(self):
            return SimpleNamespace(remote=self.call)

        async def call(self, request, deadline_ms):
            self.calls += 1
            if self.calls < 3:
                raise deployment.RayActorError()
            return request

    def ask(attempts):
        client = deployment.Client(Handle(), attempts)
        return asyncio.run(client.ask({"x": 1})), client.retried

    assert ask(attempts=3) == ({"x": 1}, 2)
    with pytest.raises(deployment.RayActorError):
        ask(attempts=2)


def test_too_small_a_max_ongoing_requests_is_said(deployment, monkeypatch, caplog):
    def check(max_ongoing, max_in_flight):
        config = SimpleNamespace(max_ongoing_requests=max_ongoing)
        context = SimpleNamespace(_deployment_config=config)
        monkeypatch.setattr(deployment.serve, "get_replica_context", lambda: context)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            deployment.logger.addHandler(caplog.handler)
            try:
                assert deployment.check_max_ongoing(max_in_flight) == max_ongoing
            finally:
                deployment.logger.removeHandler(caplog.handler)
        return [each.getMessage() for each in caplog.records]

    assert check(16, 16) == check(17, 16) == []
    [message] = check(5, 16)
    assert "at most 5 requests" in message
    assert "set max_ongoing_requests to 32, or max_in_flight to 5" in message


def test_settings_of_an_application(deployment):
    own = deployment.application(max_in_flight=8)._bound_deployment
    assert own.num_replicas == 2
    assert (own.max_ongoing_requests, own.max_queued_requests) == (16, 128)
    scaled = deployment.application(
        max_in_flight=8, autoscaling_config=deployment.autoscaling(8, 4)
    )._bound_deployment
    config = scaled._deployment_config.autoscaling_config
    assert (config.min_replicas, config.max_replicas) == (1, 4)
    # Ray can reach the target, as it never sends a replica more than its limit.
    assert config.target_ongoing_requests == 8 < scaled.max_ongoing_requests
