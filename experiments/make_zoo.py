"""Makes the policies that come with edbatch, `policies/zoo/`.

Trains one policy for each ready workload that names its data, with the same command
that users run. The data are public; `Workload.zoo_data` lists them, as paths below one
folder. In a clone, with these data in a folder:

    python experiments/make_zoo.py --data path/to/data
    python experiments/make_zoo.py --data path/to/data --workloads dag-lstm lattice-gru

Where greedy reaches the lower bound, nothing is trained and the policy follows greedy.
The seed and the data files determine the policies; only the training time in their
records differs between runs. A policy depends on its workload's cells, not on sizes: it
serves every hidden size, and every number of words or labels.
"""

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from edbatch.models import WORKLOADS, get_workload

from arguments import option, parse_arguments

# The code of the command `train-policy`, to run with this Python.
_TRAIN_POLICY = "from edbatch.cli.main import train_policy_main; train_policy_main()"
ZOO = Path(__file__).parents[1] / "policies" / "zoo"

FILES = {name: files for name in WORKLOADS if (files := get_workload(name).zoo_data)}


@dataclass(frozen=True)
class Arguments:
    data: Path = option(Path("data"), "Folder with the data sets.")
    out: Path = option(ZOO, "Folder to write the policies to.")
    workloads: tuple[str, ...] = option(tuple(FILES), "Which policies to make.")
    batch_size: int = option(32, "Instances per minibatch.")
    minibatches: int = option(64, "Minibatches to train on, and to judge by.")
    trials: int = option(2000, "Schedules to try at most, for each policy.")
    seed: int = option(0, "Seed of the split, the minibatches and the training.")


def train(workload: str, arguments: Arguments) -> None:
    """Runs `train-policy` for one workload; ends the script if that fails."""
    files = [str(arguments.data / file) for file in FILES[workload]]
    options = {
        "workload": [workload],
        "data": files,
        "batch-size": [str(arguments.batch_size)],
        "minibatches": [str(arguments.minibatches)],
        "trials": [str(arguments.trials)],
        "seed": [str(arguments.seed)],
        "out": [str(arguments.out / f"{workload}.json")],
    }
    with tempfile.TemporaryDirectory() as folder:
        # The package contains only policies, no metrics.
        options["metrics"] = [str(Path(folder) / "metrics.csv")]
        command = [sys.executable, "-c", _TRAIN_POLICY]
        for name, values in options.items():
            for value in values:
                command += [f"--{name}", value]
        code = subprocess.run(command).returncode
    if code:  # the command has printed the reason
        sys.exit(code)


if __name__ == "__main__":
    arguments = parse_arguments(Arguments, __doc__)
    for workload in arguments.workloads:
        train(workload, arguments)
