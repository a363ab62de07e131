"""`edbatch demo`, at a small size."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

import edbatch as eb
from edbatch.cli import demo_tour

pytestmark = pytest.mark.usefixtures("quick_compiles")

CELL = re.compile(r"Compiling (jit\((?:leaf|compose|classify)\))")
SMALL = ("--hidden", 4, "--batch-size", 4)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_tour, "_TREES", 24)
    monkeypatch.setattr(demo_tour, "_MINIBATCHES", 2)
    monkeypatch.setattr(demo_tour, "_SIZES", eb.Sizes(widths=(16,)))
    monkeypatch.setattr(demo_tour, "_CHECKED_GRADIENTS", 1)


def test_the_tour(edbatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The next test covers measuring and verifying.
    speed = {"instances_per_s": 1200.0, "unbatched_per_s": 100.0}
    speed |= {"compiles": 1, "compile_s": 2.0}
    monkeypatch.setattr(demo_tour.Tour, "run", lambda _: speed)
    checked = {"outputs": 36, "instances": 4}
    checked |= {"max_output_error": 1e-7, "max_gradient_error": 2e-7}
    monkeypatch.setattr(demo_tour.Tour, "verify", lambda _: checked)
    result = edbatch("demo", *SMALL, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    for step in (
        *("1. Count the batches", "greedy, meets this bound; you need no other"),
        *("2. Let nominal", "Train a policy on 24 trees", "tree-lstm-2type.json"),
        *("3. Compare it", "learned alone", "agenda-remaining", "depth", "greedy"),
        *("4. Load the saved policy", "1,200 trees/s, 12.0 times as fast"),
        *("5. Check every number", "36 outputs of 4 trees", "1.0e-07", "Next: "),
    ):
        assert step in text
    assert eb.load_policy(tmp_path / "tree-lstm-2type.json").name == "fsm-fall"


def test_the_tour_as_json(edbatch, tmp_path: Path) -> None:
    result = edbatch("demo", *SMALL, "--out", tmp_path, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["policy"] == str(tmp_path / "tree-lstm-2type.json")
    assert (
        found["one_composition"]["batches"] == found["one_composition"]["lower_bound"]
    )
    learned, alone, *heuristics = found["rows"]
    assert learned["batches"] <= min(row["batches"] for row in (alone, *heuristics))
    assert found["max_output_error"] < 1e-5
    assert found["max_gradient_error"] < 1e-5
    assert found["instances_per_s"] > 0
    assert "1. Count the batches" in result.stderr


@pytest.mark.parametrize(
    ("size", "timed"), [(4, [4] * 4), (10, [10, 10]), (24, [24]), (50, [24])]
)
def test_throughput_is_that_of_whole_minibatches(size, timed, monkeypatch) -> None:
    """A minibatch takes one millisecond per tree here."""
    ran = []

    def of_one_ms(function, *arguments):
        ran.append(len(arguments[1]) if arguments else 8)
        return None, float(ran[-1])

    monkeypatch.setattr(demo_tour, "timed", of_one_ms)
    tour = demo_tour.Tour(Path(), None, 4, 0, [*range(24)], [], [], size)
    tour.__dict__.update(params=None, batched=SimpleNamespace(compiles=1))
    found = tour.run()
    assert ran[-3 - len(timed) :] == [*timed, 8, 8, 8]
    assert found["instances_per_s"] == found["unbatched_per_s"] == 1000


def test_the_folder_is_made(tmp_path: Path) -> None:
    tour = demo_tour.Tour.start(tmp_path / "a" / "b", 4, 4, 0)
    assert tour.path.parent.is_dir()


def test_a_folder_that_cannot_be_made(assert_fails, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    for name, why in (("a", "File exists"), ("a/b", "Not a directory")):
        assert_fails(
            rf"--out names a folder but .*{name} cannot be made \({why}\); name anot",
            *("demo", "--out", tmp_path / name),
        )


def test_the_model_of_one_tree_is_compiled_ahead(tmp_path: Path, caplog) -> None:
    """It is compiled while another process compiles the loops of planning."""
    hidden = 6  # a size that no other test uses
    tour = demo_tour.Tour.start(tmp_path, hidden, 4, 0)
    tour.__dict__["batched"] = eb.batch(tour.workload.model, sizes=demo_tour._SIZES)
    with jax.log_compiles():
        tour.compile_unbatched()
        ahead = set(CELL.findall(caplog.text))
        caplog.clear()
        tour.verify()
    assert ahead >= {"jit(leaf)", "jit(compose)", "jit(classify)"}
    assert not CELL.findall(caplog.text)
