"""The record of a policy's training, kept with it and in its file."""

import sys
from dataclasses import dataclass, fields
from importlib import metadata
from typing import Any

from edbatch.errors import PolicyError, shown

_REASONS = ("greedy", "lower bound", "trials", "patience", "interrupted")

# Encoding of policies that only follow greedy although they were trained with `fall`,
# which falls back on another heuristic.
GREEDY_ENCODING = "sort"


@dataclass(frozen=True)
class TrainingRecord:
    """The settings and the results of a training.

    Numbers of batches are means over the held-out minibatches; for a policy trained for
    cost they are costs, in units of an average batch.

    Attributes:
        workload: Description of the training data, given by the user.
        encoding: The encoding of frontiers.
        seed: Seed of the exploration.
        n_step: Number of steps after which the table estimates the rest of a return.
        alpha: Weight of the ratio of the sufficient condition in the reward.
        learning_rate: Minimum weight of a new return in a table entry.
        epsilon: Share of random actions in the first trial.
        generations: Number of generations that tune the weights of the smoothed bound,
            for `fall`.
        patience: Number of evaluations without improvement after which to stop.
        trials: Number of trials that were run.
        max_trials: Maximum number of trials.
        best_trial: Trial after which the policy was taken; 0 if before the first.
        minibatches: Number of minibatches trained on.
        batch_size: Mean number of instances per minibatch.
        held_out: Number of held-out minibatches.
        held_out_batches: Batches that the policy runs on the held-out minibatches.
        held_out_lower_bound: Lower bound; no policy runs fewer batches.
        held_out_depth: Batches of the depth heuristic.
        held_out_agenda: Batches of the agenda heuristic; None if the record is from a
            version whose agenda was agenda-remaining.
        held_out_agenda_remaining: Batches of the agenda-remaining heuristic.
        held_out_greedy: Batches of the greedy heuristic.
        held_out_unseen: Total number of steps on the held-out minibatches in states not
            seen in training.
        stopped: `"greedy"` if that heuristic meets the lower bound on every minibatch,
            so that nothing was trained and the policy, without states, follows it;
            `"lower bound"` if every held-out minibatch meets the bound; otherwise why
            training ended: `"trials"`, `"patience"` or `"interrupted"`.
        worse_than_greedy: Whether every evaluated table was worse than the greedy
            heuristic, so that the policy has no states and only follows it.
        elapsed_s: Training time in seconds, without Numba's compilation.
        curve: Trial, and batches on the held-out minibatches, of each evaluation.
        versions: Versions of the packages that can change the result.
        by_cost: True if the policy was trained for measured costs; numbers of batches
            are then costs, in units of an average batch. None otherwise.

    Example:
        >>> from edbatch.policies import train_policy
        >>> from edbatch.schedule.examples import tree
        >>> graph = tree("((ab)cb)c")
        >>> policy = train_policy([graph], [graph], trials=10)
        >>> policy.training.encoding, policy.training.seed
        ('fall', 0)
    """

    workload: str
    encoding: str
    seed: int
    n_step: int
    alpha: float
    learning_rate: float
    epsilon: float
    generations: int
    patience: int
    trials: int
    max_trials: int
    best_trial: int
    minibatches: int
    batch_size: float
    held_out: int
    held_out_batches: float
    held_out_lower_bound: float
    held_out_depth: float
    held_out_agenda: float | None
    held_out_agenda_remaining: float
    held_out_greedy: float
    held_out_unseen: int
    stopped: str
    worse_than_greedy: bool
    elapsed_s: float
    curve: tuple[tuple[int, float], ...]
    versions: tuple[tuple[str, str], ...]
    by_cost: bool | None = None

    @property
    def follows_greedy(self) -> bool:
        """Whether the policy has no states, and only follows the greedy heuristic."""
        return self.stopped == "greedy" or self.worse_than_greedy

    @property
    def has_no_result(self) -> bool:
        """Whether training was interrupted before it evaluated a table."""
        return self.stopped == "interrupted" and not self.curve

    def to_json(self) -> dict[str, Any]:
        """Returns the record as JSON values, in the order of the attributes."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.by_cost is None:  # as in files without this entry
            del values["by_cost"]
        curve = [list(point) for point in self.curve]
        return values | {"curve": curve, "versions": dict(self.versions)}

    @classmethod
    def from_json(cls, values: Any) -> "TrainingRecord":
        """Reads the JSON values that `to_json` returns.

        Args:
            values: JSON values.

        Returns:
            The record.

        Raises:
            ValueError: An entry is missing, unknown or of another kind; the message is
                a clause that names it.
        """
        if not isinstance(values, dict):
            raise ValueError("'training' is not an object")
        values = {"by_cost": None} | values
        kinds = {field.name: field.type for field in fields(cls)}
        wrong = sorted(kinds.keys() ^ values.keys())
        if wrong:
            how = "has no" if wrong[0] in kinds else "has an unknown"
            raise ValueError(f"'training' {how} {shown(wrong[0])}")
        for name, kind in kinds.items():
            if name not in ("curve", "versions") and not _is_a(values[name], kind):
                raise ValueError(f"{name!r} in 'training' is not of type {_name(kind)}")
            if name != "seed" and _is_below_zero(values[name]):
                raise ValueError(f"{name!r} in 'training' is negative")
        curve = values["curve"]
        if not isinstance(curve, list) or not all(map(_is_point, curve)):
            raise ValueError(
                "'curve' in 'training' is not an array of pairs of numbers"
            )
        if any(_is_below_zero(number) for point in curve for number in point):
            raise ValueError("'curve' in 'training' has a negative number")
        if values["stopped"] not in _REASONS:
            raise ValueError(
                f"'stopped' in 'training' is {shown(values['stopped'])} and not one of"
                f" {', '.join(map(repr, _REASONS))}"
            )
        versions = values["versions"]
        if not isinstance(versions, dict) or not all(
            isinstance(each, str) for each in versions.values()
        ):
            raise ValueError("'versions' in 'training' is not an object of strings")
        return cls(
            **{
                **values,
                "curve": tuple((trial, float(batches)) for trial, batches in curve),
                "versions": tuple(versions.items()),
            }
        )


def _is_point(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and _is_a(value[0], int)
        and _is_a(value[1], float)
    )


def _is_below_zero(value: Any) -> bool:
    return type(value) in (int, float) and value < 0


def is_number(value: Any) -> bool:
    """Returns whether a JSON value is a number that a float can represent."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _is_a(value: Any, kind: Any) -> bool:
    if kind == float | None:
        return value is None or is_number(value)
    if kind == bool | None:
        return value is None or type(value) is bool
    return is_number(value) if kind is float else type(value) is kind


def _name(kind: Any) -> str:
    names: dict[Any, str] = {
        str: "string",
        int: "integer",
        float: "number",
        bool: "boolean",
    }
    names[bool | None] = "boolean or null"
    return names.get(kind, "number or null")


def check_workload(workload: object) -> None:
    """Checks the description of the training data for a training record.

    Raises:
        PolicyError: It is not text, or text that cannot be written to a file.
    """
    text = workload if isinstance(workload, str) else None
    if text is None or text.encode(errors="replace").decode() != text:
        raise PolicyError(
            "'workload' is a text that says what is trained on, but is"
            f" {shown(workload)}; leave it out for none"
        )


def package_versions() -> tuple[tuple[str, str], ...]:
    """Returns the versions of the packages that affect the result of training."""
    return tuple((name, _version(name)) for name in ("edbatch", "numba", "numpy"))


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"
