"""The load test compares systems that answer correctly, and charges them for stalls."""

import json
import socket
import threading
import time

import jax
import numpy as np
import pytest

import edbatch as eb


@pytest.fixture
def served(experiment):
    from load_models import load_model

    return load_model("lstm-nmt", 4, 6, seed=1)


def test_a_tiny_run_writes_all_files(experiment, tmp_path, capfd):
    experiment.main(
        [
            *("--workloads", "tree-lstm", "--hidden", "4", "--instances", "8"),
            *("--windows", "2", "--shares", "50", "--seconds", "0.3", "--steps", "1"),
            *("--max-requests", "60", "--max-in-flight", "8", "--window-requests", "4"),
            *("--data", str(tmp_path / "none"), "--out", str(tmp_path)),
            *("--tiers", "coarse"),
        ]
    )
    found = json.loads((tmp_path / "tree-lstm-4.json").read_text())
    systems = {"continuous", "window 2 ms", "one by one"}
    assert set(found["capacity"]) == systems and min(found["capacity"].values()) > 0
    assert {each["system"] for each in found["points"]} == systems
    for point in found["points"]:
        assert point["answered"] == point["requests"] > 0
        assert point["wrong"] == point["facts"]["compilations"] == 0
        assert point["latency_ms"]["p50"] >= point["first_value_ms"]["p50"] > 0
    assert (tmp_path / "tree-lstm-4.png").stat().st_size > 10_000
    tables = (tmp_path / "tables.md").read_text()
    assert "| 50% | " in tables and "| window 2 ms |" in tables and "sampled" in tables
    assert tables in capfd.readouterr().out


@pytest.mark.parametrize("name", ["tree-lstm", "lstm-nmt"])
def test_models_are_served_as_they_are_alone(experiment, name):
    from load_models import encode_answer, load_model, same_answer

    served = load_model(name, 4, 3)
    with eb.Server(eb.batch(served.model), served.params) as server:
        futures = [server.submit_nowait(each) for each in served.instances]
        answers = [encode_answer(each.result(120)) for each in futures]
    expected = [
        encode_answer(served.model(served.params, each)) for each in served.instances
    ]
    for found, other in zip(answers, expected, strict=True):
        assert same_answer(found, other, asks=served.asks)
    assert not same_answer(b"", expected[0], asks=served.asks)


def test_the_vocabulary_is_one_type_for_memories_of_all_lengths(experiment):
    from load_models import load_model

    served = load_model("lstm-nmt", 4, 20, seed=1)
    batched = eb.batch(served.model)
    with eb.Server(batched, served.params) as server:
        futures = [server.submit_nowait(each) for each in served.instances]
        assert all(each.result(120) for each in futures)
    cells = [each.key.cell for each in batched.types]
    assert cells.count("look") > 1 and cells.count("word_of") == 1


def test_words_are_those_of_the_cell_of_the_workload(experiment):
    from load_models import load_model, translate_greedily

    from edbatch.models.lstm_nmt import attend, likeliest, lstm, start

    def reference(params, pair):
        state, memory = start(params["encoder"]), []
        for word in pair.source:
            state = lstm(params["encoder"], word, state)
            memory.append(state[0])
        word, words = pair.target[0], []
        for _ in pair.target[1:]:
            state = lstm(params["decoder"], word, state)
            logits = attend(params["attention"], state[0], memory)
            word = int(eb.value(likeliest(logits)))
            words.append(word)
        return words

    served = load_model("lstm-nmt", 8, 6, seed=2)
    for pair in served.instances:
        assert translate_greedily(served.params, pair) == reference(served.params, pair)


def test_instances_are_the_same_in_every_process(experiment):
    from load_models import load_model

    one, other = (load_model("tree-lstm", 2, 5, seed=3) for _ in range(2))
    assert [*map(str, one.instances)] == [*map(str, other.instances)]
    sizes = [len([*each.words()]) for each in one.by_size]
    assert sizes == sorted(sizes) and len(sizes) == 5


class Collected:
    """Collects answers as they arrive."""

    def __init__(self, served, count):
        from load_systems import Ticket

        self.answers = {}
        self._left = threading.Semaphore(0)
        self._count = count
        self.tickets = [
            Ticket(served.instances[k % len(served.instances)], self._take)
            for k in range(count)
        ]

    def _take(self, ticket, found):
        self.answers[id(ticket)] = found
        self._left.release()

    def of(self, system):
        half = self._count // 2
        for each in self.tickets[:half]:
            system.submit(each)
        system.submit_many(self.tickets[half:])
        for _ in range(self._count):
            assert self._left.acquire(timeout=120), "every ticket gets an answer"
        system.close()
        return [self.answers[id(each)] for each in self.tickets]


def make_systems(served):
    from load_systems import Continuous, OneByOne, Window, of_tickets

    batched = eb.batch(of_tickets(served))
    return [
        lambda: Continuous(batched, served.params, max_in_flight=3),
        lambda: Window(batched, served, 2.0, most=4),
        lambda: OneByOne(served),
    ]


def test_all_systems_answer_as_the_model_alone(experiment, served):
    from load_models import encode_answer

    expected = [
        encode_answer(served.model(served.params, each)) for each in served.instances
    ]
    for make in make_systems(served):
        assert Collected(served, 6).of(make()) == expected


def test_all_systems_hand_out_what_the_model_raises(experiment, served):
    served.instances[:] = [None] * 6  # not a pair
    for make in make_systems(served):
        for answer in Collected(served, 6).of(make()):
            assert isinstance(answer, AttributeError)


def test_windows_collect_until_they_are_full(experiment, served, monkeypatch):
    from load_systems import Window

    sizes, started, go_on = [], threading.Event(), threading.Event()

    def run(self, tickets):
        sizes.append(len(tickets))
        started.set()
        go_on.wait(60)
        for each in tickets:
            each.done(b"")

    monkeypatch.setattr(Window, "_run", run)
    window = Window(None, served, 0.0, most=4)
    first, rest = Collected(served, 1), Collected(served, 10)
    window.submit(first.tickets[0])
    assert started.wait(60)
    threading.Timer(0.05, go_on.set).start()
    rest.of(window)
    assert sizes == [1, 4, 4, 2]


def test_first_values_are_noted_per_request(experiment, served, monkeypatch):
    from load_systems import Ticket, note_first_values, of_tickets

    monkeypatch.setattr(eb, "value", eb.value)  # restores it after the test
    note_first_values()
    tickets = [Ticket(each, lambda *_: None) for each in served.instances]
    begun = time.monotonic()
    eb.batch(of_tickets(served))(served.params, tickets)
    firsts = [each.first_value for each in tickets]
    assert all(begun < each < time.monotonic() for each in firsts)
    assert len(set(firsts)) == len(firsts)


def test_messages_are_cut_where_they_end(experiment):
    from load_wire import REQUEST, Answer, Reader, pack_answer

    one, other = socket.socketpair()
    answers = [Answer(k, 0, 0.5, bytes(k)) for k in range(3)]
    data = b"".join(map(pack_answer, answers))
    reader, found = Reader(other), []
    for part in (data[:20], data[20:25], data[25:]):
        one.sendall(part)
        found += reader.answers()
    assert found == answers
    one.sendall(REQUEST.pack(1, 2) + REQUEST.pack(3, 4)[:5])
    assert Reader(other).requests() == [(1, 2)]
    one.close()
    with pytest.raises(ConnectionError, match="hung up"):
        reader.answers()
    other.close()


def stalling_server(door, stall_s):
    """Answers all requests, after sleeping once."""
    from load_wire import Answer, Reader, pack_answer

    connection, _ = door.accept()
    reader, slept = Reader(connection), False
    with connection:
        while (requests := reader.requests()) is not None:
            if not slept:
                time.sleep(stall_s)
            slept = True
            for number, _ in requests:
                now = time.monotonic()
                connection.sendall(
                    pack_answer(Answer(number, number % 7 == 6, now, b""))
                )


def test_a_stall_is_charged_to_all_requests_that_came_meanwhile(experiment):
    from load_generator import Generator

    with socket.create_server(("127.0.0.1", 0)) as door:
        thread = threading.Thread(target=stalling_server, args=(door, 0.4))
        thread.start()
        with Generator(door.getsockname(), 5, np.random.default_rng(0)) as generator:
            run = generator.open_loop(rate=200, count=60, limit_s=30)
        thread.join(60)
    failed = np.arange(60) % 7 == 6
    assert np.isinf(run.latency_ms[failed]).all()
    latency, intended = run.latency_ms[~failed], run.intended[~failed]
    charged = 400 - 1e3 * (intended - intended[0])
    assert (latency >= charged).all() and (charged > 100).sum() > 20
    assert (np.diff(run.intended) > 0).all() and set(run.instance) <= set(range(5))


def test_the_capacity_is_not_that_of_failing(experiment):
    from load_generator import Generator

    with socket.create_server(("127.0.0.1", 0)) as door:
        thread = threading.Thread(target=stalling_server, args=(door, 0))
        thread.start()
        with (
            Generator(door.getsockname(), 5, np.random.default_rng(0)) as generator,
            pytest.raises(RuntimeError, match=r"failed a request .* Answer\(number="),
        ):
            generator.closed_loop(8, seconds=30)
        thread.join(60)


class Slope:
    """A bench of systems whose latency grows with the load."""

    def __init__(self):
        self.rates = []

    def point(self, system, rate):
        from load_bench import Point

        self.rates.append(rate)
        p99 = 10.0 * rate / 100 if rate < 900 else None
        latency = {"p50": 1.0, "p95": 1.0, "p99": p99}
        return Point(system, rate, 1, 1, 0, rate, rate, latency, 1.0, latency, 0.0, {})


def test_the_highest_load_is_found_between_what_keeps_a_limit_and_what_does_not(
    experiment, parse
):
    bench = Slope()
    own = parse(["--steps", "12"])
    test = experiment.Test(bench, own, time.monotonic() + 60)
    found = test.search("any", 50.0, {"any": 1000.0})
    assert 500 / 1.06 < found <= 500 and len(bench.rates) < 12
    assert test.search("any", 1.0, {"any": 1000.0}) <= 10
    late = experiment.Test(bench, own, time.monotonic() - 1)
    assert late.search("any", 50.0, {"any": 1000.0}) is None


def test_ways_to_run_the_server_go_by_the_workload(experiment, tmp_path):
    from load_models import encode_answer, load_model
    from load_server import CELLS_FIRST_COME, CONTINUOUS, LEARNED, ServerSettings
    from load_systems import Continuous, of_tickets

    def settings(workload, policies="", heuristics=()):
        policy = experiment._policy_of(policies, workload)
        own = workload, 4, 6, (2.0,), 4, 8, policy, heuristics
        return ServerSettings(*own, one_by_one=True, data=None, seed=1)

    names = [CONTINUOUS, "window 2 ms", "one by one"]
    assert settings("tree-lstm").system_names() == names
    (tmp_path / "lstm-nmt.json").write_text("")
    for policies in (str(tmp_path), f"lstm-nmt={tmp_path / 'lstm-nmt.json'}"):
        assert settings("lstm-nmt", policies).policy == tmp_path / "lstm-nmt.json"
        assert settings("tree-lstm", policies).policy is None
    own = settings("lstm-nmt", "tree-lstm=a.json,lstm-nmt=b.json")
    assert own.system_names() == [CONTINUOUS, CELLS_FIRST_COME, LEARNED, *names[1:]]
    assert own.servers()[LEARNED]["policy"].name == "b.json"
    served = load_model("lstm-nmt", 4, 6, seed=1)
    expected = [
        encode_answer(served.model(served.params, each)) for each in served.instances
    ]
    own = settings("lstm-nmt", heuristics=("greedy", "largest", "oldest"))
    batched = eb.batch(of_tickets(served))
    for name in (CELLS_FIRST_COME, "greedy", "largest", "oldest"):
        system = Continuous(batched, served.params, **own.servers()[name])
        assert Collected(served, 6).of(system) == expected


def test_answers_that_never_came_make_a_percentile_infinite(experiment):
    from load_bench import percentiles

    found = percentiles(np.array([1.0] * 98 + [np.inf] * 2))
    assert found == {"p50": 1.0, "p95": 1.0, "p99": None}


def test_the_table_puts_p99_beside_that_of_the_best_window(experiment):
    from load_report import table

    def point(system, rate, p99):
        latency = {"p50": 1.0, "p95": 2.0, "p99": p99}
        facts = {"compilations": 0, "cpu_s": 0.105, "requests_before": 96}
        counts = {"requests": 9, "answered": 9, "wrong": 0, "reached": 1, "goodput": 1}
        own = {"latency_ms": latency, "first_value_ms": latency, "facts": facts}
        own["mean_ms"] = 0.5 * p99 if p99 else None
        return {"system": system, "rate": rate, **counts, **own}

    names = ("continuous", "window 2 ms", "window 5 ms", "one by one")
    learned = {"learned": 6.0, "greedy": 12.0, "largest": 8.0, "oldest": None}
    highest, p99s = (90.0, 40.0, 60.0, None), (9.0, None, 30.0, 1.0)
    found = {
        **{"workload": "any", "hidden": 4, "data": "none", "discarded_runs": 0},
        "alone_ms": {"continuous": 1.0},
        "capacity": dict.fromkeys(names, 100.0),
        "standard_capacity": 100.0,
        "highest_load": {"50.0": dict(zip(names, highest, strict=True))},
        "points": [
            *(point(name, 70.0, p99s[k]) for k, name in enumerate(names)),
            point("continuous", 80.0, None),
            *(point(name, 70.0, p99) for name, p99 in learned.items()),
        ],
    }
    text = table(found)
    assert "| 70% | 9.0 | 30.0 | 0.30 |" in text
    assert (
        "| 70%, 70/s | 3.0 | 4.0 (largest) | 0.75 | 4.5 | 6.0 | 8.0 (largest) | 0.75"
        " | 9.0 |" in text
    )
    assert "| 80% | ∞ |" not in text  # no window was measured there
    assert "| continuous, by the best window and one by one | | 1.50, - |" in text
    assert "| continuous | 80 | 80% | 1.0 | 2.0 | ∞ |" in text
    assert "| 1 | 1 | 1.00 |" in text  # ms of CPU time per request


def test_what_is_compiled_is_counted(experiment):
    from load_server import Compilations

    counted = Compilations()
    jax.jit(lambda x: 3 * x + counted.count)(2.0).block_until_ready()
    assert counted.count > 0


def test_policies_are_trained_on_the_types_that_are_served(experiment):
    """Policies identify types by cell, parameters and arity; all must be known."""
    from load_models import MODELS, load_model
    from load_training import pairs, parameters, translate_known

    from edbatch.models import get_workload

    found = pairs(np.random.default_rng(0), 3)
    assert len(found) == 3 and parameters(jax.random.key(0))["encoder"]
    for name in MODELS:
        served = load_model(name, 4, 4, seed=2)
        known = get_workload(name).model if name != "lstm-nmt" else translate_known
        trained = eb.batch(known, params=served.params)
        trained.plan(trained.record(each) for each in served.instances)
        batched = eb.batch(served.model)
        with eb.Server(batched, served.params) as server:
            futures = [server.submit_nowait(each) for each in served.instances]
            for each in futures:
                each.result(120)
        assert set(types_of(batched)) <= set(types_of(trained))


def test_stored_policies_know_the_types_that_are_served(experiment):
    from pathlib import Path

    from load_models import MODELS, load_model

    folder = Path(experiment.__file__).parent / "serving_policies"
    for name in MODELS:
        served = load_model(name, 4, 8, seed=2)
        batched = eb.batch(served.model)
        with eb.Server(batched, served.params) as server:
            futures = [server.submit_nowait(each) for each in served.instances]
            for each in futures:
                each.result(120)
        stored = json.loads((folder / f"{name}.json").read_text())["types"]
        known = {(each["cell"], each["path"]) for each in stored}
        own = {(each.key.cell.rsplit(".")[-1], each.key.path) for each in batched.types}
        assert own <= known, name


def types_of(batched):
    return [(each.key.cell, each.key.path) for each in batched.types]


def test_where_the_data_holds_fewer_instances_requests_repeat_them(
    experiment, tmp_path
):
    from load_models import DATA, load_model

    path = tmp_path / DATA["tree-lstm"]
    path.mkdir(parents=True)
    (path / "a.ptb").write_text("(S (NP (DT the) (NN dog)) (VP barks))\n(S a b)\n")
    served = load_model("tree-lstm", 4, 7, data=tmp_path)
    assert len(served.instances) == 7 and served.data == DATA["tree-lstm"]
    assert len(set(served.instances)) == 2


@pytest.mark.parametrize(
    ("policies", "message"),
    [("no/such/folder", "no such|there is no"), ("tree-lsmt=a.json", "tree-lsmt, but")],
)
def test_policies_of_no_model_are_refused(experiment, policies, message):
    with pytest.raises(SystemExit, match=message):
        experiment._policy_of(policies, "tree-lstm")
