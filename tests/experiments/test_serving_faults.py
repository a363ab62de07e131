"""The fault test answers good requests correctly, and would notice if it did not."""

import json
import socket

import pytest
import scipy.stats

import edbatch as eb


@pytest.fixture(scope="module")
def short(experiment, tmp_path_factory):
    """A trial of a few seconds, with many faults and swaps."""
    folder = tmp_path_factory.mktemp("faults")
    code = experiment.main(
        [
            *("--workloads", "transition-parser", "--hidden", "4"),
            *("--minutes", "0.06", "--fault-percent", "8", "--swap-s", "0.4"),
            *("--instances", "8", "--max-in-flight", "16", "--capacity-s", "0.5"),
            *("--load-percent", "40", "--deadline-ms", "0.01", "--traced"),
            *("--data", str(folder / "none"), "--out", str(folder)),
        ]
    )
    found = json.loads((folder / "transition-parser-4.json").read_text())
    return code, found, (folder / "table.md").read_text()


def test_every_good_request_is_answered_rightly(short):
    code, found, _ = short
    assert code == 0 and not found["problems"]
    assert found["ended"]["good: answered"] == found["sent"]["good"] > 20
    assert found["wrong"] == found["failed_otherwise"] == found["lost"] == 0
    assert found["drained"] and found["swaps"] >= 3
    assert found["instances_whose_answers_differ_between_sets"] > 0


def test_faults_happen_and_end_as_they_should(short):
    _, found, _ = short
    sent, ended = found["sent"], found["ended"]
    for kind in ("poisoned", "oversized"):
        assert ended[f"{kind}: failed as it should"] == sent[kind] > 0
    for kind in ("cancelled", "deadline", "hung up"):
        assert sent[kind] > 0
    stats = found["stats"]
    accepted = ("answered", "failed", "cancelled", "expired")
    assert sum(stats[each] for each in accepted) == stats["submitted"]


def test_memory_is_back_when_all_is_answered(short):
    _, found, _ = short
    traced = found["traced_bytes"]
    # Percentiles keep the latencies of all requests, 64 bytes each. When more requests
    # are in flight than ever before, call stacks and a longer table of rows stay for
    # later ones: one part grows, and another may shrink again. A leak grows in every
    # part. The median of the slopes between all pairs of parts is the slope of a leak,
    # whatever a single part does.
    assert len(traced) == 4
    growth = scipy.stats.theilslopes(traced).slope
    assert growth < 100_000 + 25 * sum(found["sent"].values())


def test_the_table_says_it(short):
    _, found, table = short
    good = found["sent"]["good"]
    assert f"| {good:,} of {good:,} | 0 | 0 | 0 |" in table


@pytest.fixture
def served(experiment):
    from load_models import load_model

    return load_model("tree-lstm", 4, 4)


@pytest.fixture
def clients(experiment, served):
    """Clients whose server is the other end of a socket pair."""
    from fault_clients import Clients
    from load_models import encode_answer

    answers = [served.model(served.params, each) for each in served.instances]
    later = [each + 1 for each in answers]
    expected = [[encode_answer(each) for each in own] for own in (answers, later)]
    one, other = socket.socketpair()
    with one, other, socket.create_server(("127.0.0.1", 0)) as door:
        found = Clients(one, door.getsockname(), expected, asks=False)
        yield found, other, expected, door


def test_wrong_answers_and_failures_of_good_requests_are_noticed(clients):
    from fault_wire import REFUSED
    from faulty_requests import GOOD, POISONED
    from load_wire import ANSWERED, FAILED, Answer, pack_answer

    clients, server, expected, _ = clients
    for kind in (GOOD, GOOD, GOOD, POISONED, GOOD):
        clients.send(kind, 0, 0.0, 0.0)
    own, poison = b"RecordingError: of another one", b"PoisonedError: its own"
    for number, status, content in (
        (0, ANSWERED, expected[0][0]),
        (1, ANSWERED, expected[1][0]),  # of parameters not current yet
        (2, FAILED, own),
        (3, FAILED, poison),
        (4, REFUSED, b""),
    ):
        server.sendall(pack_answer(Answer(number, status, 0.0, content)))
    assert clients.receive(clients.all_ended, 10.0)
    assert clients.outcomes.ended == {
        (GOOD, "answered"): 1,
        (GOOD, "wrong answer"): 1,
        (GOOD, "failed otherwise"): 1,
        (POISONED, "failed as it should"): 1,
        (GOOD, "refused"): 1,
    }
    assert clients.outcomes.lost == 0 and len(clients.outcomes.problems) == 2


def test_answers_may_be_of_any_set_that_was_current_meanwhile(clients):
    from faulty_requests import GOOD
    from load_wire import ANSWERED, Answer, pack_answer

    clients, server, expected, _ = clients
    clients.send(GOOD, 0, 0.0, 0.0)  # before the swap
    clients.run(iter([(GOOD, 0, 0.01, 0.0)]), 1.0, swap_s=0.005)
    clients.send(GOOD, 0, 0.0, 0.0)  # never answered
    assert clients.swaps == 1 and clients.outcomes.sent[GOOD] == 3
    for number, of in ((0, 1), (1, 0)):
        answer = Answer(number, ANSWERED, 0.0, expected[of][0])
        server.sendall(pack_answer(answer))
    clients.receive(lambda: clients.in_flight_now == 1, 10.0)
    assert clients.outcomes.ended == {(GOOD, "answered"): 1, (GOOD, "wrong answer"): 1}
    assert not clients.receive(clients.all_ended, 0.05)
    assert clients.outcomes.lost == 1


def test_clients_cancel_and_hang_up(clients):
    from fault_wire import CANCEL, CANCELLATION, FAULT, KINDS
    from faulty_requests import CANCELLED, HUNG_UP
    from load_wire import Answer, pack_answer

    clients, server, _, door = clients
    clients.send(CANCELLED, 1, 0.0, 0.01)
    clients.send(HUNG_UP, 2, 0.0, 0.01)
    connection, _ = door.accept()
    with connection:
        assert not clients.no_hang_ups_pending()
        assert clients.receive(clients.no_hang_ups_pending, 10.0)
        assert FAULT.unpack(connection.recv(100)) == (1, KINDS.index(HUNG_UP), 2)
        assert connection.recv(1) == b""
    found = [FAULT.unpack(server.recv(FAULT.size)) for _ in range(2)]
    assert found == [(0, CANCELLATION, 1), (0, CANCEL, 0)]
    server.sendall(pack_answer(Answer(0, CANCELLATION, 0.0, b"")))
    assert clients.receive(clients.all_ended, 10.0)
    ended = {(CANCELLED, "cancelled"): 1, (HUNG_UP, "cancelled"): 1}
    assert clients.outcomes.ended == ended


@pytest.mark.parametrize("name", ["tree-lstm", "lstm-nmt", "transition-parser"])
def test_faulty_requests_are_faulty(experiment, name):
    from faulty_requests import PoisonedError, oversized, poisoned, with_faults
    from load_models import load_model

    served = load_model(name, 2, 1)
    [instance] = served.instances
    batched = eb.batch(with_faults(served))
    with eb.Server(batched, served.params, max_nodes=1000) as server:
        bad = [*(poisoned(instance, k) for k in range(3)), oversized(instance)]
        found = [server.submit_nowait(each).exception(120) for each in bad]
    assert [type(each) for each in found] == [
        *(PoisonedError, PoisonedError, eb.RecordingError, eb.RecordingError)
    ]
    assert "does not fit" in str(found[2]) and "max_nodes" in str(found[3])


def test_memory_that_grows_is_noticed(experiment):
    from fault_bench import MemoryLog, resident_bytes

    assert resident_bytes() > 0
    log = MemoryLog(60.0)
    log.close()
    log.rss_bytes[:] = [100, 100, 100, 100, 105, 110, 120, 120]
    assert log.growth_percent() == pytest.approx(20)
    fine = {
        **dict.fromkeys(("wrong", "failed_otherwise", "lost"), 0),
        "rss_growth_percent": 1.0,
        "drained": True,
    }
    assert experiment.is_fine(fine, 5.0)
    for change in ({"lost": 1}, {"rss_growth_percent": 6.0}, {"drained": False}):
        assert not experiment.is_fine(fine | change, 5.0)


def test_workloads_share_the_budget(experiment, monkeypatch, tmp_path):
    """Time that a workload leaves goes to the next ones; a trial is never empty."""
    clock = [0.0]

    class Bench:
        def __init__(self, workload, own):
            self.warm_up_s = {"a": 60.0, "b": 600.0, "c": 60.0}[workload]

        def __enter__(self):
            clock[0] += self.warm_up_s
            return self

        def __exit__(self, *error):
            pass

        def capacity(self):
            return 10.0

        def trial(self, rate, minutes):
            assert rate == 8.0
            clock[0] += 60 * minutes
            found.append(minutes)
            return {"problems": [], "wrong": 1} | dict.fromkeys(
                ("failed_otherwise", "lost", "rss_growth_percent", "drained"), 0
            )

    found = []
    monkeypatch.setattr(experiment, "Bench", Bench)
    monkeypatch.setattr(experiment.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(experiment, "table", lambda results: "")
    words = ["--workloads", "a,b,c", "--out", str(tmp_path)]
    assert experiment.main([*words, "--budget-min", "20", "--minutes", "5"]) == 1
    assert found == [5.0, 0.5, pytest.approx(20 - 6 - 10.5 - 1 - 0.3)]
    assert experiment.main([*words, "--minutes", "2"]) == 1
    assert found[3:] == [2.0] * 3
