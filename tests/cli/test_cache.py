"""`edbatch cache`, and the compilation cache that the other commands use."""

import json

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

HASH = "0123456789abcdef" * 4


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("EDBATCH_CACHE_DIR", str(tmp_path / "programs"))
    names = (
        "jax_compilation_cache_dir",
        "jax_persistent_cache_min_compile_time_secs",
        "jax_persistent_cache_min_entry_size_bytes",
    )
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update("jax_compilation_cache_dir", None)
    yield tmp_path / "programs"
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def test_commands_keep_programs_and_cache_clears_them(edbatch, folder):
    options = "run --workload tree-lstm --samples 4 --batch-size 4 --hidden 4"
    assert edbatch(*options.split()).exit_code == 0
    result = edbatch("cache", "--json")
    report = json.loads(result.stdout)
    assert report["folder"] == str(folder)
    assert report["programs"] >= 1 and report["megabytes"] > 0
    assert str(report["programs"]) in edbatch("cache", "--info").stdout
    cleared = json.loads(edbatch("cache", "--clear", "--json").stdout)
    assert cleared["removed"] == report["programs"]
    assert json.loads(edbatch("cache", "--json").stdout)["programs"] == 0


def test_a_folder_that_cannot_be_used_is_noted(edbatch, folder):
    folder.write_text("a file")
    options = "run --workload tree-lstm --samples 2 --batch-size 2 --hidden 4"
    result = edbatch(*options.split())
    assert result.exit_code == 0
    assert "Note: programs are compiled again" in result.stderr


def test_jaxs_own_setting_is_respected(edbatch, folder, tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "jax"))
    edbatch("inspect", "zoo:tree-lstm-2type")
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "jax")


def test_it_shows_the_folder_that_jax_was_given(edbatch, folder, tmp_path):
    own = tmp_path / "jax"
    own.mkdir()
    (own / f"one-{HASH}-cache").write_text("a program")
    (own / f"edbatch-{HASH}-stablehlo").write_text("a lowered one")
    (own / f"two-{HASH}-cache").mkdir()  # a folder, so not JAX's
    (own / "dataset-cache").write_text("mine")
    jax.config.update("jax_compilation_cache_dir", str(own))
    report = json.loads(edbatch("cache", "--json").stdout)
    assert report["folder"] == str(own)
    assert (report["programs"], report["files"]) == (1, 2)
    removed = json.loads(edbatch("cache", "--clear", "--json").stdout)
    assert (removed["removed"], removed["files"]) == (1, 2)
    left = sorted(each.name for each in own.iterdir())
    assert left == ["dataset-cache", f"two-{HASH}-cache"]


def test_an_empty_name_of_jaxs_folder_is_none(edbatch, folder, tmp_path, monkeypatch):
    jax.config.update("jax_compilation_cache_dir", "")
    monkeypatch.chdir(tmp_path)
    own = tmp_path / f"mine-{HASH}-cache"
    own.write_text("")
    cleared = json.loads(edbatch("cache", "--clear", "--json").stdout)
    assert cleared["folder"] == str(folder) and own.exists()
    edbatch("inspect", "zoo:tree-lstm-2type")
    assert jax.config.jax_compilation_cache_dir == str(folder)


def test_a_remote_cache_is_refused(assert_fails, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    jax.config.update("jax_compilation_cache_dir", "gs://bucket/programs")
    assert_fails(r"JAX was given the address gs://bucket/programs; manage", "cache")


@pytest.mark.parametrize("target", ["nowhere", "programs"])
def test_a_broken_link_is_told(edbatch, folder, tmp_path, target):
    folder.symlink_to(tmp_path / target)
    result = edbatch("cache")
    assert result.exit_code == 0
    assert "is a broken link; fix the link" in " ".join(result.stderr.split())


def test_a_file_in_place_of_the_folder_is_told(edbatch, folder):
    folder.write_text("a file")
    result = edbatch("cache")
    assert result.exit_code == 0
    assert "which is not a writable folder" in " ".join(result.stderr.split())


def test_a_folder_that_cannot_be_used(edbatch, assert_fails, folder, tmp_path):
    assert json.loads(edbatch("cache", "--json").stdout)["usable"] is True
    assert not folder.exists()
    folder.write_text("a file")
    assert json.loads(edbatch("cache", "--json").stdout)["usable"] is False
    assert_fails(
        r"not a writable folder; set EDBATCH_CACHE_DIR .*nothing is", "cache", "--clear"
    )
    jax.config.update("jax_compilation_cache_dir", str(folder / "below"))
    found = edbatch("cache")
    told = " ".join(found.stderr.split())
    assert "which cannot be made, because" in told and found.exit_code == 0
    assert "set JAX_COMPILATION_CACHE_DIR to a folder" in told
    assert folder.read_text() == "a file"


def test_both_at_once(assert_fails):
    assert_fails(r"--clear and --info are two", "cache", "--clear", "--info")


def test_no_cache(assert_fails, folder, monkeypatch):
    monkeypatch.setenv("EDBATCH_CACHE_DIR", "off")
    assert_fails(r"EDBATCH_CACHE_DIR is 'off'", "cache")


def test_help_has_an_example(edbatch):
    text = " ".join(edbatch("cache", "--help").stdout.split())
    assert "Example: edbatch cache --clear" in text
