"""Tests the persistent cache: hits, bounds, clearing, and damaged entries."""

import errno
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

HASH = "0123456789abcdef" * 4
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
    """Runs the program; returns its output by first word, and its stderr."""
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
    # The fine programs are not the coarse ones: coarse ones have other XLA options.
    assert first["cached"] == "False False False False False"
    assert first["folder"] == str(tmp_path)
    second, stderr = run(tmp_path)
    # If the fine program is found, no coarse one is requested.
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


@pytest.mark.parametrize("address", ["gs://bucket/programs", Path("s3://programs")])
def test_an_address_is_no_folder(address, tmp_path, monkeypatch, restored):
    monkeypatch.chdir(tmp_path)
    with pytest.warns(UserWarning, match=r"cannot be written: it is a URL"):
        assert eb.use_compilation_cache(address) is None
    assert list(tmp_path.iterdir()) == [], "no folder of this name is made"


def test_a_folder_that_is_a_file(tmp_path, restored):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.warns(
        UserWarning, match=r"compiled again .* cannot be written: .*name"
    ):
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
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")  # ignored by the rules
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
        entry = tmp_path / f"{name}-{HASH}-cache"
        entry.write_bytes(b"x" * 100)
        os.utime(entry, (k, k))
    names = ("", ""), ("fine-", ""), ("coarse-", "ab_1x9yz")  # last: being written
    names = [f"edbatch-{tier}{HASH}-stablehlo{more}" for tier, more in names]
    for k, name in enumerate(names):
        lowered = tmp_path / name
        lowered.write_bytes(b"x" * 10)
        os.utime(lowered, (3 * k, 3 * k))
    (tmp_path / "other").write_bytes(b"x" * 1000)
    eb.use_compilation_cache(tmp_path, max_bytes=225)
    left = sorted(each.name for each in tmp_path.iterdir())
    kept = [f"a-{HASH}-cache", f"c-{HASH}-cache", *names[1:], "other"]
    assert left == sorted(kept)
    found = cache_contents(tmp_path)
    assert (found.programs, found.files, found.size_bytes) == (2, 4, 220)
    removed = clear_compilation_cache(tmp_path)
    assert removed == found
    assert [each.name for each in tmp_path.iterdir()] == ["other"]
    assert cache_contents(tmp_path / "none").programs == 0


def test_files_of_others_are_left(tmp_path, restored):
    programs = tmp_path / "programs"
    programs.mkdir()
    kept = tmp_path / "kept"
    kept.write_bytes(b"x" * 1000)
    own = [
        "dataset-cache",
        f"model-{HASH[1:]}-cache",
        f"model-{HASH.upper()}-cache",
        "model-stablehlo.mlir",
        f"edbatch-{HASH}-stablehlo.mlir",
        f"edbatch-{HASH}-stablehlo-and-my-notes",
        "my-atime",
    ]
    for name in own:
        (programs / name).write_bytes(b"x" * 1000)
    links = ["link-cache", f"link-{HASH}-cache", f"edbatch-{HASH}-stablehlo"]
    for name in links:
        (programs / name).symlink_to(kept)
    eb.use_compilation_cache(programs, max_bytes=0)
    assert clear_compilation_cache(programs).files == 0
    assert sorted(each.name for each in programs.iterdir()) == sorted(own + links)


def test_jaxs_notes_of_the_last_use_go_with_their_programs(tmp_path, restored):
    for k, name in enumerate("ab"):
        for kind in ("cache", "atime"):
            (tmp_path / f"{name}-{HASH}-{kind}").write_bytes(b"x" * 8)
        os.utime(tmp_path / f"{name}-{HASH}-cache", (k, k))
    (tmp_path / f"gone-{HASH}-atime").write_bytes(b"x" * 8)
    eb.use_compilation_cache(tmp_path, max_bytes=32)
    left = sorted(each.name for each in tmp_path.iterdir())
    assert left == [f"b-{HASH}-atime", f"b-{HASH}-cache", f"gone-{HASH}-atime"]
    removed = clear_compilation_cache(tmp_path)
    assert (removed.programs, removed.files, removed.size_bytes) == (1, 3, 24)
    assert not [*tmp_path.iterdir()]


def test_all_that_a_process_writes_is_known(tmp_path):
    run(tmp_path)
    written = [each for each in tmp_path.iterdir() if each.is_file()]
    assert cache_contents(tmp_path).files == len(written) > 8
    clear_compilation_cache(tmp_path)
    assert not [each for each in tmp_path.iterdir() if each.is_file()]


def test_a_folder_that_may_not_be_looked_into(tmp_path, restored, monkeypatch):
    """For example another user's home: it warns and does not raise."""

    def refuse(path, *_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    for name in ("lstat", "stat", "mkdir"):
        monkeypatch.setattr(os, name, refuse)
    with pytest.warns(UserWarning, match="cannot be written: Permission denied"):
        assert eb.use_compilation_cache(tmp_path / "home" / "programs") is None


@pytest.mark.parametrize("below", ["", "below"])
@pytest.mark.parametrize("target", ["nowhere", "link"])
def test_a_folder_that_is_a_broken_link(tmp_path, restored, target, below):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / target)
    with pytest.warns(UserWarning, match=r"link is a link that leads nowhere; name an"):
        assert eb.use_compilation_cache(link / below) is None
    assert cache_contents(link / below).files == 0


def test_options_are_checked():
    with pytest.raises(
        eb.EdbatchError, match=r"max_bytes is a whole number, 0 or more"
    ):
        eb.use_compilation_cache(max_bytes=-1)
