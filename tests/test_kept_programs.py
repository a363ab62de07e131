import os
from pathlib import Path

from jax._src.lru_cache import LRUCache
from kept_programs import put_whole, remove_forgotten


def test_a_program_is_found_when_it_is_whole(tmp_path, monkeypatch):
    cache, seen, write = LRUCache(str(tmp_path), max_size=-1), [], Path.write_bytes

    def watched(self, value):
        seen.append(cache.get("key"))
        write(self, value)
        seen.append(cache.get("key"))

    monkeypatch.setattr(Path, "write_bytes", watched)
    for value in (b"whole", b"another"):  # JAX's `put` also keeps the first value
        put_whole(cache, "key", value)
        assert cache.get("key") == b"whole"
    assert seen == [None, None]
    assert len([*tmp_path.iterdir()]) == 1


def test_only_what_killed_runs_left_is_removed(tmp_path):
    old, new, other = (
        tmp_path / name for name in ("edbatch-programs-a", "edbatch-programs-b", "c")
    )
    for each in (old, new, other):
        each.mkdir()
        (each / "file").touch()
    for each in (old, other):
        os.utime(each, (0, 0))
    remove_forgotten(tmp_path)
    assert {*tmp_path.iterdir()} == {new, other}
