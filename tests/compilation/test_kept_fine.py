"""Tests that fine programs compiled by an earlier process run from the first call."""

import os
import shutil
import subprocess
import sys

import pytest

PROGRAM = """
import sys
import jax, jax.numpy as jnp, numpy as np
import edbatch as eb
from edbatch.compilation import cache, kept_fine
from edbatch.stored_programs import stored_program

if "--plugin" in sys.argv:
    cache.has_device_plugin = lambda: True
    sys.argv.remove("--plugin")
made, make = [], stored_program._make
def note(*args):
    made.append(args[1])
    return make(*args)
stored_program._make = note

eb.use_compilation_cache()
scale, wait = float(sys.argv[1]), int(sys.argv[2])
if len(sys.argv) > 3:
    kept_fine.LARGE_BYTES = int(sys.argv[3])
cell = eb.cell(lambda params, x: jnp.tanh(params @ x), name="cell")
batched = eb.batch(
    lambda params, xs: cell(params, cell(params, xs)), params=np.eye(4, dtype="f4"),
    sizes=eb.Sizes(widths=(8,)),
)
params = np.arange(16, dtype="f4").reshape(4, 4) / 9
data = [np.arange(4, dtype="f4"), np.ones(4, "f4")]

@eb.jit
def slope(params, plan):
    return jax.grad(lambda p: scale * (batched.apply(p, plan) ** 2).sum())(params)

plan = batched.plan(data)
found = slope(params, plan)
for _ in range(3 * wait):
    slope(params, plan)
assert eb.wait_for_compilations(200)
found = slope(params, plan)
expected = jax.grad(
    lambda p: scale * sum((jnp.tanh(p @ jnp.tanh(p @ x)) ** 2).sum() for x in data)
)(params)
np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
print("made", *made)
print("tiers", *(each.tier for each in eb.compile_report()))
print("cached", *(each.from_cache for each in eb.compile_report()))
print("runs", eb.compile_report().coarse_runs, eb.compile_report().fine_runs)
print("background", *(each.background for each in eb.compile_report()))
print("states", *(each.state for each in eb.compile_report()))
"""


def run(
    folder, scale=1, wait=True, large_bytes=None, tiers="auto", warning="", plugin=False
):
    """Runs the program; returns its output by first word, without warnings."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, str(scale), str(int(wait))]
        + ([] if large_bytes is None else [str(large_bytes)])
        + (["--plugin"] if plugin else []),
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"EDBATCH_CACHE_DIR": str(folder), "EDBATCH_TIERS": tiers},
    )
    assert done.returncode == 0, done.stderr
    assert warning in done.stderr and bool(warning) == bool(done.stderr)
    lines = (line.partition(" ") for line in done.stdout.splitlines())
    return {word: rest for word, _, rest in lines}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("programs")
    first = run(found)
    assert first["tiers"] == "coarse fine"
    assert first["made"].split() == ["run_with_tapes", "differentiate"] * 2
    return found


def test_the_second_process_has_it_at_once(folder):
    second = run(folder, wait=False)
    assert second["made"] == ""
    assert (second["tiers"], second["cached"]) == ("fine", "True")
    assert second["states"] == "finished"


def test_a_large_fine_program_is_read_while_the_coarse_one_runs(folder):
    second = run(folder, large_bytes=0)
    assert second["made"] == "", "nothing is traced"
    assert (second["tiers"], second["cached"]) == ("coarse fine", "True True")
    assert second["background"] == "False True"
    assert second["states"] == "finished finished"
    coarse, fine = map(int, second["runs"].split())
    assert coarse >= 2 and fine >= 1 and coarse + fine == 5


def test_of_a_large_one_that_ran_once_nothing_is_read(folder):
    second = run(folder, wait=False, large_bytes=0)
    assert (second["tiers"], second["background"]) == ("coarse fine", "False True")
    assert second["runs"] == "2 0", "the second run asks for it"


@pytest.mark.parametrize("move", [shutil.copytree, os.rename])
def test_a_folder_that_was_moved_holds_the_same_programs(folder, tmp_path, move):
    here, there = tmp_path / "here", tmp_path / "there"
    shutil.copytree(folder, here)
    move(here, there)
    second = run(there, wait=False)
    assert second["made"] == ""
    assert (second["tiers"], second["cached"]) == ("fine", "True")


@pytest.mark.parametrize("large_bytes", [0, None])
def test_where_keys_hold_the_path_a_moved_folder_starts_with_the_coarse_one(
    tmp_path, large_bytes
):
    here, there = tmp_path / "here", tmp_path / "there"
    run(here, plugin=True)
    assert run(here, wait=False, plugin=True)["tiers"] == "fine"
    here.rename(there)
    moved = run(there, wait=False, plugin=True, large_bytes=large_bytes)
    assert moved["made"] == "", "lowered programs do not depend on it"
    # JAX 0.10 must compile it; in 0.12 keys do not contain the path, so it is read.
    assert moved["tiers"] == "coarse"


def damage(folder, tier):
    [note] = folder.glob(f"edbatch-{tier}-*")
    entry = folder / f"{note.read_bytes()[32:].decode().split()[1]}-cache"
    entry.write_bytes(entry.read_bytes()[:100])


@pytest.mark.parametrize(
    ("tier", "cached"), [("coarse", "False True"), ("fine", "True False")]
)
def test_a_damaged_program_is_compiled_again(folder, tmp_path, tier, cached):
    """A large fine program is compiled again in the background."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    damage(tmp_path, tier)
    found = run(tmp_path, large_bytes=0, warning="edbatch cache --clear")
    assert (found["tiers"], found["cached"]) == ("coarse fine", cached)
    assert found["background"] == "False True"
    assert found["states"] == "finished finished"


def test_fine_only_never_runs_a_coarse_one(folder):
    second = run(folder, large_bytes=0, tiers="fine")
    assert (second["tiers"], second["cached"]) == ("fine", "True")
    assert second["runs"] == "0 5"


def test_another_loss_of_the_same_signature_starts_with_the_coarse_one(folder):
    other = run(folder, scale=2, wait=False)
    assert other["made"] == "", "what the plan computes is the same"
    assert (other["tiers"], other["cached"]) == ("coarse", "False")


def test_a_note_of_a_program_that_was_removed(folder, tmp_path):
    for each in folder.glob("*-stablehlo"):
        (tmp_path / each.name).write_bytes(each.read_bytes())
    found = run(tmp_path, wait=False)
    assert found["made"] == ""
    assert (found["tiers"], found["cached"]) == ("coarse", "False")
