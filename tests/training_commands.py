"""Command lines of `train-policy`, and their output files."""

import csv
from pathlib import Path

import edbatch as eb
from edbatch.policies import StateMachine

SMALL = ("--batch-size", 4, "--minibatches", 2)
TREES = ("train-policy", "--workload", "tree-lstm", *SMALL)


def evaluations(path: Path) -> list[tuple[int, dict[str, float]]]:
    """Trial and metrics of each row, without the time."""
    with open(path, newline="") as file:
        rows = [*csv.DictReader(file)]
    return [
        (
            int(row.pop("step")),
            {name: round(float(v), 9) for name, v in row.items() if name != "seconds"},
        )
        for row in rows
    ]


def load(path: Path) -> StateMachine:
    policy = eb.load_policy(path)
    assert isinstance(policy, StateMachine)
    return policy


LATTICES = ("train-policy", "--workload", "lattice-lstm", *SMALL, "--trials", 40)
