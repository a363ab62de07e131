"""`edbatch run`."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from edbatch import limits
from edbatch.cli.params_file import fill, read_arrays, save_params
from edbatch.cli.run import sizes_of
from edbatch.errors import EdbatchError
from edbatch.models import WORKLOADS, get_workload

pytestmark = pytest.mark.usefixtures("quick_compiles")

SMALL = ("--hidden", 3, "--batch-size", 4)


def numbers(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as content:
        return {name: content[name] for name in content.files}


def test_results_are_those_of_the_model(
    edbatch, treebank: Path, policy_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.npz"
    result = edbatch(
        *("run", "--workload", "tree-lstm", "--data", treebank, "--data", treebank),
        *("--policy", policy_file, "--out", out, "--json", "--hidden", 3),
        *("--batch-size", 3, "--seed", 5),
    )
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["instances"], report["minibatches"]) == (8, 3)
    assert report["policy"] == "fsm-fall"
    assert report["out"] == str(out)
    assert report["hidden"] == 3
    assert report["compiles"] >= 1
    workload = get_workload("tree-lstm")
    params = workload.init_params(jax.random.key(5), 3)
    found = numbers(out)
    assert set(found) == {"state", "logits"}
    assert found["state"].shape == (8, 3)
    for k, tree in enumerate(workload.read([treebank, treebank])):
        expected = workload.model(params, tree)
        np.testing.assert_allclose(found["state"][k], expected["state"], atol=1e-6)
        np.testing.assert_allclose(found["logits"][k], expected["logits"], atol=1e-6)


def test_lists_stand_one_after_the_other_and_parameters_come_back(
    edbatch, tmp_path: Path
) -> None:
    data = tmp_path / "a.conll"
    data.write_text("In O\nOslo B-LOC\n\nDogs O\n\nWe O\nbark O\nat O\nnight O\n")
    params, out = tmp_path / "params.npz", tmp_path / "out.npz"
    tagger = ("run", "--workload", "bilstm-tagger", "--data", data, *SMALL)
    result = edbatch(*tagger, "--out", out, "--save-params", params)
    assert result.exit_code == 0, result.output
    assert "instances 3 minibatches 1" in " ".join(result.stdout.split())
    assert "All minibatches waited for a compilation" in result.stderr
    found = numbers(out)
    assert found["output.lengths"].tolist() == [2, 1, 4]
    assert found["output"].shape == (7, 18)
    assert numbers(params)["layers.1.forward.i.W"].shape == (6, 3)

    # Fewer data would number the words differently; the saved vocabulary prevents that.
    data.write_text("We O\nbark O\nat O\nnight O\n")
    again = tmp_path / "again.npz"
    fewer = (*tagger[:-4], "--batch-size", 4, "--seed", 9)
    result = edbatch(*fewer, "--out", again, "--params", params)
    assert result.exit_code == 0, result.output
    # Another program, with other widths and another summation order.
    np.testing.assert_allclose(
        numbers(again)["output"], found["output"][3:], rtol=1e-5, atol=1e-7
    )


def test_every_node_can_be_classified(edbatch, treebank: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.npz"
    result = edbatch(
        *("run", "--workload", "tree-lstm", "--classify", "nodes", "--out", out),
        *("--data", treebank, *SMALL, "--policy", "depth"),
    )
    assert result.exit_code == 0, result.output
    trees = get_workload("tree-lstm").read(treebank)
    lengths = [tree.num_nodes() for tree in trees]
    assert numbers(out)["logits.lengths"].tolist() == lengths
    assert numbers(out)["logits"].shape == (sum(lengths), 5)


def test_throughput_leaves_compilations_out(edbatch) -> None:
    result = edbatch(
        *("run", "--workload", "tree-lstm", "--samples", 20, "--batch-size", 2),
        *("--hidden", 3, "--json"),
    )
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["minibatches"] == 10
    assert report["instances_per_s"] > 0
    steady = report["record_s"] + report["plan_s"] + report["run_s"]
    assert steady + report["compile_s"] < report["seconds"]
    assert report["out"] is None


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("Missing option '--workload'", ()),
        ("there is no workload 'x'; all are", ("--workload", "x")),
        ("did you mean 'greedy'", ("--workload", "tree-lstm", "--policy", "gredy")),
        ("--out names a file", ("--workload", "tree-lstm", "--out", "no/x.npz")),
        ("--save-params names", ("--workload", "tree-lstm", "--save-params", "no/x")),
        (
            "none.npz does not exist",
            ("--workload", "tree-lstm", "--params", "none.npz"),
        ),
    ],
)
def test_what_cannot_be_done_is_said(assert_fails, message, arguments) -> None:
    assert_fails(message, "run", *arguments)


def tree_params(**changes: np.ndarray | None) -> dict[str, np.ndarray]:
    params = get_workload("tree-lstm", vocabulary_size=9).init_params(
        jax.random.key(0), 3
    )
    arrays: dict[str, np.ndarray | None] = {
        jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }
    arrays |= {name.replace("_", "."): value for name, value in changes.items()}
    return {name: value for name, value in arrays.items() if value is not None}


@pytest.mark.parametrize("hidden", [3, 6])
@pytest.mark.parametrize("name", WORKLOADS)
def test_parameters_tell_their_sizes(name: str, hidden: int, tmp_path: Path) -> None:
    file = tmp_path / "params.npz"
    workload = get_workload(name, vocabulary_size=40)
    params = workload.init_params(jax.random.key(0), hidden)
    save_params(file, params, None)
    arrays, _ = read_arrays(file)
    sizes, found = sizes_of(name, arrays, hidden=128)
    assert (sizes["vocabulary_size"], found) == (40, hidden)
    again = get_workload(name, **sizes)
    shapes = jax.eval_shape(
        lambda key: again.init_params(key, found), jax.random.key(0)
    )
    jax.tree.map(np.testing.assert_array_equal, fill(shapes, arrays, file), params)


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("has no array 'leaf.i.b', which the model needs", {"leaf_i_b": None}),
        ("an array 'leaf.i.bias' .* mean 'leaf.i.b'", {"leaf_i_bias": np.zeros(3)}),
        (
            r"'compose.f.1.b' of shape \[6, 2\] but the model needs \[3\];"
            r" give the options, such as --arity, .*; --hidden is read from the file",
            {"compose_f_1_b": np.zeros((6, 2))},
        ),
        ("vectors for 9 words but .* vocabulary has 21", {
            "vocabulary": np.array([f"w{k}" for k in range(20)])
        }),
        ("cannot be read: Object arrays", {"leaf_i_b": np.array([None, {}])}),
        ("'leaf.i.b' of <U1 but the model needs float32; save", {
            "leaf_i_b": np.array(["a", "b", "c"])
        }),
        ("'leaf.i.b' of complex64 but the model needs float32; save", {
            "leaf_i_b": np.full(3, 1j, np.complex64)
        }),
        ("'leaf.i.b' of float64 with values that do not fit float32, which", {
            "leaf_i_b": np.full(3, 1e300)
        }),
        (r"has float64\[2\] as 'vocabulary' instead of a list of words; save", {
            "vocabulary": np.zeros(2)
        }),
        (r"has <U1\[1, 2\] as 'vocabulary' instead of a list of words", {
            "vocabulary": np.array([["a", "b"]])
        }),
    ],
)  # fmt: skip
def test_what_is_wrong_with_parameters_is_said(
    assert_fails, treebank: Path, tmp_path: Path, message, changes
) -> None:
    file = tmp_path / "params.npz"
    np.savez(file, **tree_params(**changes))
    arguments = ("run", "--workload", "tree-lstm", "--data", treebank)
    assert_fails(message, *arguments, "--params", file)


@pytest.mark.parametrize(
    ("array", "leaf"),
    [
        (np.float64([1.5, np.inf, np.nan]), np.float32),
        (np.complex64([1, 2]), np.float32),  # all values are real
        (np.int64([1, -2]), np.int32),
        (np.int64([1, -2]), jnp.bfloat16),
        (np.float32([1, 2]), np.int32),  # all values are whole numbers
        (np.array([True, False]), np.float32),
    ],
)
def test_parameters_of_another_dtype_are_converted_where_no_value_is_lost(array, leaf):
    shape = {"w": jax.ShapeDtypeStruct(array.shape, leaf)}
    found = fill(shape, {"w": array}, Path("params.npz"))["w"]
    assert found.dtype == leaf
    np.testing.assert_array_equal(found.astype(array.dtype), array)


@pytest.mark.parametrize(
    ("array", "leaf"),
    [
        (np.float64([1e39]), np.float32),
        (np.int64([2**40]), np.int32),
        (np.float32([1.5]), np.int32),
        (np.complex64([1j]), np.float32),
    ],
)
def test_parameters_that_would_be_others_are_refused(array, leaf):
    shape = {"w": jax.ShapeDtypeStruct(array.shape, leaf)}
    with pytest.raises(EdbatchError, match=f"'w' of {array.dtype} .*save the param"):
        fill(shape, {"w": array}, Path("params.npz"))


def test_a_device_is_written_to(edbatch) -> None:
    result = edbatch("run", "--workload", "tree-lstm", *SMALL, "--out", "/dev/null")
    assert result.exit_code == 0, result.output


def test_a_full_disk_is_told_with_the_file(assert_fails) -> None:
    assert_fails(
        "/dev/full cannot be used: No space left on device",
        *("run", "--workload", "tree-lstm", *SMALL, "--out", "/dev/full"),
    )


def test_parameters_in_a_folder_are_no_file(assert_fails, tmp_path: Path) -> None:
    arguments = ("run", "--workload", "tree-lstm", "--params", tmp_path)
    assert_fails("is no regular file; check the name", *arguments)


def test_a_file_of_another_kind_is_no_parameters(assert_fails, tmp_path: Path) -> None:
    file = tmp_path / "params.npz"
    file.write_text("hello")
    arguments = ("run", "--workload", "tree-lstm", "--params", file)
    assert_fails("params.npz is another kind of file, or cut short", *arguments)


def test_parameters_that_unpack_to_too_much(
    assert_fails, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FREE_ARRAY_BYTES", 0)
    file = tmp_path / "params.npz"
    np.savez_compressed(file, zeros=np.zeros(10**6))
    arguments = ("run", "--workload", "tree-lstm", "--params", file)
    assert_fails(r"cannot be read: its [\d,]+ bytes unpack to 8,000,", *arguments)


@pytest.mark.parametrize("name", ["lattice-lstm", "lattice-gru"])
def test_a_word_list_is_one_of_the_data(edbatch, name: str, tmp_path: Path) -> None:
    text, words = tmp_path / "a.conll", tmp_path / "dict.txt"
    text.write_text("a O\nb O\n\nc O\n")
    words.write_text("ab 3 n\n")
    params, out, again = (tmp_path / f"{each}.npz" for each in "pxy")
    data = ("run", "--workload", name, "--data", text, "--data", words)
    result = edbatch(*data, *SMALL, "--out", out, "--save-params", params)
    assert result.exit_code == 0, result.output
    assert numbers(out)["output.lengths"].tolist() == [2, 1]
    assert numbers(params)["vocabulary"].tolist() == ["<unk>", "a", "b", "ab", "c"]
    result = edbatch(*data, "--batch-size", 4, "--params", params, "--out", again)
    assert result.exit_code == 0, result.output
    np.testing.assert_allclose(numbers(again)["output"], numbers(out)["output"])


def test_without_a_word_list(assert_fails, tmp_path: Path) -> None:
    file = tmp_path / "a.conll"
    file.write_text("a O\n")
    message = "lattices need a word list in addition to the files of characters"
    assert_fails(message, "run", "--workload", "lattice-lstm", "--data", file)


def test_the_vocabularies_of_both_languages_come_back(edbatch, tmp_path: Path) -> None:
    data = tmp_path / "a.tsv"
    data.write_text("good tea\tbon the\ntea\tthe\n")
    params, out, again = (tmp_path / f"{each}.npz" for each in "pxy")
    command = ("run", "--workload", "lstm-nmt", "--data", data, "--batch-size", 4)
    found = (*command, "--hidden", 3, "--out", out, "--save-params", params)
    result = edbatch(*found)
    assert result.exit_code == 0, result.output
    saved = numbers(params)
    assert saved["vocabulary"].tolist() == ["<unk>", "tea", "good"]
    assert saved["target_vocabulary"].tolist() == ["<unk>", "<s>", "the", "</s>", "bon"]
    data.write_text("tea\tthe\n")  # would number words differently if not saved
    result = edbatch(*command, "--params", params, "--out", again)
    assert result.exit_code == 0, result.output
    np.testing.assert_allclose(numbers(again)["output"], numbers(out)["output"][3:])
