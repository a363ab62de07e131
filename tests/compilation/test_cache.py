"""The persistent cache: found again, bounded, cleared, and harmless if it is broken."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cache_options import own_cache_options

import edbatch as eb
from edbatch.compilation import (
    cache_contents,
    clear_compilation_cache,
    default_cache_folder,
)

PROGRAM = """
import sys
import jax, jax.numpy as jnp
import edbatch as eb

hits, misses = [], []
def count(event, **_):
    if event.endswith("/cache_hits"): hits.append(event)
    if event.endswith("/compile_requests_use_cache"): misses.append(event)
jax.monitoring.register_event_listener(count)

print("folder", eb.use_compilation_cache())
params = jnp.ones((4, 4))
double = eb.cell(lambda params, x: jnp.tanh(params @ x))
batched = eb.batch(
    lambda params, xs: double(params, double(params, xs)), params=params,
    sizes=eb.Sizes(widths=(8,)),
)
data = [jnp.arange(4.0), jnp.ones(4)]

@eb.jit
def slope(params, plan):
    return jax.grad(lambda p: (batched.apply(p, plan) ** 2).sum())(params)

for _ in range(3):
    total = float(batched(params, data).sum() + slope(params, batched.plan(data)).sum())
assert eb.wait_for_compilations(200)
total = float(batched(params, data).sum() + slope(params, batched.plan(data)).sum())
report = eb.compile_report()
print("total", total)
print("tiers", *sorted(each.tier for each in report))
print("cached", *(each.from_cache for each in report))
print("hits", len(hits), len(misses))
"""


@pytest.fixture
def restored():
    with own_cache_options():
        yield


def run(folder, program=PROGRAM, **environment):
    """Runs the program; what it printed, by first word, and its stderr."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ
        | {"EDBATCH_CACHE_DIR": str(folder), "EDBATCH_TIERS": "auto"}
        | environment,
    )
    assert done.returncode == 0, done.stderr
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    return lines, done.stderr


def test_a_second_process_finds_the_programs_of_both_tiers(tmp_path):
    first, _ = run(tmp_path)
    assert first["tiers"] == "coarse coarse fine fine fine"
    # The fine ones are no copies of the coarse ones: XLA has options for these.
    assert first["cached"] == "False False False False False"
    assert first["folder"] == str(tmp_path)
    second, stderr = run(tmp_path)
    # Where the fine program is found, no coarse one is asked for.
    assert second["cached"] == "True True True" and second["tiers"] == "fine fine fine"
    assert second["total"] == first["total"]
    hits, requests = map(int, second["hits"].split())
    assert hits == requests, "small programs of JAX itself are kept, too"
    assert stderr == ""


def test_damaged_programs_are_compiled_with_one_warning(tmp_path):
    first, _ = run(tmp_path)
    entries = sorted(tmp_path.glob("*-cache"))
    assert len(entries) > 4
    for each in entries:
        each.write_bytes(each.read_bytes()[:7])
    second, stderr = run(tmp_path)
    assert second["total"] == first["total"]
    assert second["cached"].startswith("False False")
    assert stderr.count("Warning") == 1, stderr
    assert "edbatch cache --clear" in stderr
    third, stderr = run(tmp_path)
    assert third["cached"] == "True True True", "damaged programs were replaced"
    assert third["total"] == first["total"] and stderr == ""


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_cannot_be_written(tmp_path):
    tmp_path.chmod(0o500)
    lines, stderr = run(tmp_path / "below")
    assert lines["folder"] == "None" and stderr.count("Warning") == 1


def test_a_folder_that_is_a_file(tmp_path, restored):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.warns(UserWarning, match=r"compiled anew .* cannot be written: .*name"):
        assert eb.use_compilation_cache(file / "below") is None
    lines, stderr = run(file)
    assert lines["folder"] == "None" and lines["cached"].startswith("False")
    assert stderr.count("Warning") == 1


def test_a_folder_that_vanishes(tmp_path):
    gone = tmp_path / "gone"
    vanish = f"import shutil; shutil.rmtree({str(gone)!r}); double ="
    program = PROGRAM.replace("double =", vanish, 1)
    lines, stderr = run(gone, program)
    assert lines["tiers"] == "coarse coarse fine fine fine"
    assert stderr.count("Warning") == 1, stderr


def test_the_folder_by_platform(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.delenv("EDBATCH_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/ann")
    monkeypatch.setattr(sys, "platform", "linux")
    assert default_cache_folder() == Path("/var/ann/edbatch/programs")
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")  # the rules ignore it
    assert default_cache_folder() == Path("/home/ann/.cache/edbatch/programs")
    monkeypatch.setattr(sys, "platform", "darwin")
    expected = Path("/home/ann/Library/Caches/edbatch/programs")
    assert default_cache_folder() == expected
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", "/c/ann")
    assert default_cache_folder() == Path("/c/ann/edbatch/programs")
    monkeypatch.setenv("EDBATCH_CACHE_DIR", "/mine")
    assert default_cache_folder() == Path("/mine")
    monkeypatch.setenv("EDBATCH_CACHE_DIR", "off")
    assert default_cache_folder() is None and eb.use_compilation_cache() is None


def test_another_folder_takes_effect(tmp_path, restored):
    for name in "ab":
        assert eb.use_compilation_cache(tmp_path / name) == tmp_path / name
        eb.jit(lambda x: x * 3 + 1)(1.0)
        assert cache_contents(tmp_path / name).programs >= 1


def test_what_was_not_used_for_longest_is_removed(tmp_path, restored):
    for k, name in enumerate(["b", "c", "a"]):
        entry = tmp_path / f"{name}-cache"
        entry.write_bytes(b"x" * 100)
        os.utime(entry, (k, k))
    for k, name in enumerate(["old", "new", "written"]):
        lowered = tmp_path / f"edbatch-{name}-stablehlo{'x' * (name == 'written')}"
        lowered.write_bytes(b"x" * 10)
        os.utime(lowered, (3 * k, 3 * k))
    (tmp_path / "other").write_bytes(b"x" * 1000)
    eb.use_compilation_cache(tmp_path, max_bytes=225)
    left = sorted(each.name for each in tmp_path.iterdir())
    lowered = ["edbatch-new-stablehlo", "edbatch-written-stablehlox"]
    assert left == ["a-cache", "c-cache", *lowered, "other"]
    found = cache_contents(tmp_path)
    assert (found.programs, found.size_bytes) == (2, 220)
    removed = clear_compilation_cache(tmp_path)
    assert (removed.programs, removed.size_bytes) == (2, 220)
    assert [each.name for each in tmp_path.iterdir()] == ["other"]
    assert cache_contents(tmp_path / "none").programs == 0


def test_options_are_checked():
    with pytest.raises(
        eb.EdbatchError, match=r"max_bytes is a whole number, 0 or more"
    ):
        eb.use_compilation_cache(max_bytes=-1)
