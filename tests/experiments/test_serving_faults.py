"""The test of faults answers good requests rightly, and would notice if it did not."""

import json
from concurrent.futures import Future

import pytest

import edbatch as eb


@pytest.fixture(scope="module")
def short(experiment, tmp_path_factory):
    """A trial of some seconds, with many faults and swaps."""
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
    half, whole = found["traced_bytes"]
    # Percentiles keep the latencies of all requests, 64 bytes each. The largest crowd
    # may come late: it leaves call stacks and a longer table of rows for the next one.
    assert whole - half < 250_000 + 100 * sum(found["sent"].values())


def test_the_table_says_it(short):
    _, found, table = short
    good = found["sent"]["good"]
    assert f"| {good:,} of {good:,} | 0 | 0 | 0 |" in table


@pytest.fixture
def served(experiment):
    from load_models import load_model

    return load_model("tree-lstm", 4, 4)


class Held:
    """A server whose requests are answered by hand."""

    def __init__(self):
        self.futures = []

    def submit_nowait(self, request, *, deadline_ms=None):
        self.futures.append(Future())
        return self.futures[-1]


def test_wrong_answers_and_failures_of_good_requests_are_noticed(experiment, served):
    from fault_clients import Clients
    from faulty_requests import GOOD, POISONED, PoisonedError
    from load_models import encode_answer

    answers = [served.model(served.params, each) for each in served.instances]
    later = [each + 1 for each in answers]
    expected = [[encode_answer(each) for each in own] for own in (answers, later)]
    server = Held()
    clients = Clients(server, served, expected, 1.0)
    for kind in (GOOD, GOOD, GOOD, GOOD, POISONED):
        clients.send(kind, 0, 0.0, 0.0)
    right, swapped, wrong, failed, poisoned = server.futures
    right.set_result(answers[0])
    wrong.set_result(later[0])  # of a set that was not current yet
    failed.set_exception(PoisonedError("of another request"))
    poisoned.set_exception(PoisonedError("its own"))
    clients.swaps += 1
    swapped.set_result(later[0])
    clients.send(GOOD, 0, 0.0, 0.0)  # never answered
    assert clients.outcomes.lost >= 1
    server.futures[-1].cancel()
    clients.close()
    assert clients.outcomes.ended == {
        (GOOD, "answered"): 2,
        (GOOD, "wrong answer"): 1,
        (GOOD, "failed otherwise"): 2,
        (POISONED, "failed as it should"): 1,
    }
    assert clients.outcomes.lost == 0 and len(clients.outcomes.problems) == 3


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
    log = experiment.MemoryLog(60.0)
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
    assert experiment.resident_bytes() > 0
