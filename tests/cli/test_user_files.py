"""Names and files from the user that do not fit the command."""

from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from edbatch.cli.one_sentence import CommandError
from edbatch.cli.params_file import fill, read_arrays
from edbatch.cli.run import _read
from edbatch.cli.user_code import find


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("math", "takes package.module:function, .* received 'math'"),
        ("math:", "takes package.module:function"),
        (":sqrt", "takes package.module:function"),
        ("math:sqr", r"--model names 'math:sqr' but math has no 'sqr';.*sqrt"),
        ("os:syss", "but os has no 'syss'; did you mean 'system'"),
        ("os:path.joins", r"names 'os:path.joins' but os has no 'joins';.*join"),
    ],
)
def test_a_function_that_is_not_there(name: str, message: str) -> None:
    with pytest.raises(CommandError, match=message):
        find("--model", name)


def test_a_file_in_place_of_a_module(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("model = len")
    for name in ("mine.py:model", f"{tmp_path}/mine.py:model"):
        with pytest.raises(CommandError, match=r"as `import` does, without folder and"):
            find("--model", name)


@pytest.mark.parametrize("name", ["./mine:model", "../mine:model", ".mine:model"])
def test_a_relative_name_of_a_module(name: str) -> None:
    with pytest.raises(CommandError, match=r"as `import` does, .* run the command in"):
        find("--model", name)


def test_a_module_that_is_not_python(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "not_python.py").write_text("x = 1\ndef model(:\n")
    message = r"'not_python', which is not valid Python: .* \(not_python\.py:2\)$"
    with pytest.raises(CommandError, match=message):
        find("--model", "not_python:model")


def test_parameters_of_no_file(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"a\.npz does not exist; check the name"):
        read_arrays(tmp_path / "a.npz")
    file = tmp_path / "b.npz"
    file.write_text("text")
    with pytest.raises(CommandError, match="is another kind of file, or cut short"):
        read_arrays(file)
    np.savez(file, vocabulary=np.ones(2))
    with pytest.raises(
        CommandError, match=r"float64\[2\] as 'vocabulary' instead of a list of words"
    ):
        read_arrays(file)
    np.savez(file, vocabulary=np.array(["a", "b", "a"]))
    with pytest.raises(CommandError, match="has 'a' twice in 'vocabulary', which num"):
        read_arrays(file)


def test_parameters_in_bfloat16(tmp_path: Path) -> None:
    file = tmp_path / "b.npz"
    np.savez(file, W=np.asarray(jnp.ones(2, jnp.bfloat16)))
    arrays, _ = read_arrays(file)
    message = "do not keep, such as bfloat16; save it as float32"
    with pytest.raises(CommandError, match=message):
        fill({"W": np.ones(2, np.float32)}, arrays, file)


def test_more_words_than_parameters_have_vectors_for() -> None:
    workload = SimpleNamespace(read_text=lambda _: [], vocabulary_size=2)
    message = "have vectors for 2 words but their vocabulary has 3; save them together"
    with pytest.raises(CommandError, match=message):
        _read(workload, [Path("a")], ["dog", "cat", "bird"])
