"""The settings of a benchmark."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edbatch.compiler import OFF, Compiler
from edbatch.errors import BenchmarkError, nearest
from edbatch.memory_planner import Planner

# In the order of measurement and display. `unbatched` is the reference for the
# results of all other systems.
SYSTEMS = (
    "edbatch",
    "agenda",
    "depth",
    "unbatched",
    "scan",
    "scan-sorted",
    "levels",
    "exact",
)

TRAINING = 12  # minibatches to train a policy on, a third of them held out

# Name, in a comparison of policies, of the policy that is trained or given as a file.
LEARNED = "learned"

# edbatch with parts of its memory planner and compiler enabled; measured on request.
_PLAIN = Planner("schedule")
PLANNERS: dict[str, tuple[Planner, Compiler]] = {
    "planner-off": (_PLAIN, OFF),
    "planner-layout": (Planner("aligned"), replace(OFF, slices="auto")),
    "planner-packing": (_PLAIN, replace(OFF, packing="auto")),
    "planner-both": (
        Planner("aligned"),
        replace(OFF, slices="auto", packing="auto"),
    ),
    "planner-auto": (Planner(), replace(OFF, slices="auto", packing="auto")),
    "planner-hoisting": (
        _PLAIN,
        replace(OFF, packing="auto", hoisting="always"),
    ),
}


@dataclass(frozen=True)
class BenchmarkConfig:
    """The settings of a benchmark.

    Attributes:
        workload: Name of a workload, or a name for a custom model.
        options: Options of the workload, as for `edbatch.models.get_workload`.
        hidden: Length of a workload's states; None for a custom model, whose
            parameters determine it.
        batch_size: Instances per minibatch.
        data: Files or folders with the workload's instances; if empty, instances are
            sampled.
        policy: Policy of the system `edbatch`: a name or a policy file; if None, one
            is trained on other minibatches of the same workload.
        systems: Systems to compare, from `SYSTEMS` and `PLANNERS`.
        policies: Policies to compare instead of systems; edbatch runs under each.
            ``"learned"`` is `policy` with the guard of `edbatch.batch`; the others are
            names and files as for `edbatch.get_policy`.
        rounds: Number of measurements of each minibatch on each system.
        minibatches: Number of different minibatches to measure.
        seed: Seed of parameters, sampling and shuffling.
        compiles_only: Run every minibatch once, on `edbatch` only, to count
            compilations. Nothing is compared, and times are from single runs.
        train: Also measure the value and gradient of a loss.

    Raises:
        BenchmarkError: A number is too small, or a system is missing, unknown or
            listed twice.

    Example:
        >>> BenchmarkConfig(hidden=256, systems=("edbatch", "exact")).rounds
        5
    """

    workload: str = "tree-lstm"
    options: dict[str, Any] = field(default_factory=dict)
    hidden: int | None = 128
    batch_size: int = 64
    data: tuple[Path, ...] = ()
    policy: str | None = None
    systems: tuple[str, ...] = SYSTEMS
    policies: tuple[str, ...] = ()
    rounds: int = 5
    minibatches: int = 5
    seed: int = 0
    compiles_only: bool = False
    train: bool = False

    def __post_init__(self) -> None:
        for name in ("hidden", "batch_size", "rounds", "minibatches"):
            given = getattr(self, name)
            if given is not None and given < 1:
                option = name.replace("_", "-")
                raise BenchmarkError(
                    f"--{option} must be 1 or more but is {given};"
                    f" leave it out for {getattr(BenchmarkConfig, name)}"
                )
        if self.seed < 0:
            raise BenchmarkError(
                f"--seed must be 0 or more but is {self.seed}; leave it out for 0"
            )
        if not self.systems:
            raise BenchmarkError(
                "--systems names no system; leave it out to compare "
                + ", ".join(SYSTEMS)
            )
        for each in self.systems:
            known = (*SYSTEMS, *PLANNERS)
            if each not in known:
                raise BenchmarkError(
                    f"there is no system {each!r}; {nearest(each, known)}"
                )
        for option in ("systems", "policies"):
            names = getattr(self, option)
            if len(set(names)) < len(names):
                raise BenchmarkError(
                    f"--{option} must not repeat a name but is {','.join(names)}; name"
                    " each once"
                )

    @property
    def measured(self) -> tuple[str, ...]:
        """Names of the systems or policies to measure."""
        if self.compiles_only:
            return ("edbatch",)
        return self.policies or self.systems

    @property
    def most_instances(self) -> int:
        """Number of instances needed for all minibatches to be disjoint."""
        return self.batch_size * (self.minibatches + TRAINING * self.trains)

    @property
    def trains(self) -> bool:
        """Whether a policy is trained first."""
        is_used = not self.policies or self.compiles_only or LEARNED in self.policies
        return self.policy is None and is_used
