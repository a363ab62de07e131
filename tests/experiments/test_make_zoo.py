from edbatch.models import WORKLOADS, get_workload
from edbatch.policies import StateMachine, load_policy

TREEBANK = """(S (NP (DT the) (NN dog)) (VP (VBZ sees) (NP (DT a) (JJ big) (NN cat))))
(S (NP (PRP it)) (VP (VBZ barks)))
(S (NP (NNS dogs)) (VP (VBP run) (ADVP (RB very) (RB fast)) (PP (IN at) (NN night))))
(FRAG (UH yes))
"""


def test_there_are_data_for_each_workload(experiment, project_root):
    assert {"tree-lstm", "lattice-gru"} <= experiment.FILES.keys() <= {*WORKLOADS}
    for name, files in experiment.FILES.items():
        assert files == get_workload(name).zoo_data
    assert project_root / "policies" / "zoo" == experiment.ZOO
    assert experiment.ZOO.is_dir()


def test_the_data_are_where_the_script_looks_for_them(experiment, shared_data):
    for files in experiment.FILES.values():
        assert all((shared_data / file).exists() for file in files)


def test_a_tiny_run(run, experiment, tmp_path):
    data, out = tmp_path / "data", tmp_path / "out"
    [file] = experiment.FILES["mv-rnn"]
    (data / file).mkdir(parents=True)
    (data / file / "a.ptb").write_text(TREEBANK)
    out.mkdir()
    before = {each: each.read_bytes() for each in experiment.ZOO.iterdir()}
    words = ["--data", data, "--out", out, "--workloads", "mv-rnn", "--seed", "3"]
    words += ["--batch-size", "2", "--minibatches", "2", "--trials", "5"]
    run(*words).check_returncode()
    assert [*out.iterdir()] == [out / "mv-rnn.json"]
    policy = load_policy(out / "mv-rnn.json")
    assert isinstance(policy, StateMachine)
    record = policy.training
    assert record.workload == f"mv-rnn on {(data / file).name}"
    assert (record.seed, record.batch_size, record.max_trials) == (3, 2, 5)
    assert record.minibatches == record.held_out == 2
    assert {each: each.read_bytes() for each in experiment.ZOO.iterdir()} == before


def test_a_training_that_fails_ends_the_run(run, tmp_path):
    done = run("--data", tmp_path, "--out", tmp_path)
    assert done.returncode == 2
    assert "a path to read must exist" in done.stderr.splitlines()[-1]
    assert not [*tmp_path.iterdir()]
