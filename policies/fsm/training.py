"""Trains a state machine on minibatches and evaluates it on held-out ones.

With the encoding `fall`, the weights of the smoothed bound are tuned first
(`edbatch.policies.fsm.tuning`); then a table is learned with these weights
(`edbatch.policies.fsm.q_learning`). With the other encodings there is only the table.

Gain, as mean ratio of batches to the lower bound on held-out minibatches (greedy, then
each part added to the previous ones; docs/results-policies.md): word lattices 1.398,
encoding 1.270, weights 1.233, table 1.231; CLEVR programs 1.159, 1.118, 1.090, 1.082;
trees of two types 1.131, then 1.065 for the encoding, with and without training.
"""

import functools
from collections.abc import Sequence
from os import PathLike

from edbatch.arguments import as_path, check_number, list_of
from edbatch.errors import PolicyError, shown
from edbatch.graph.structure import GraphStructure
from edbatch.policies.comparison import meets_bounds
from edbatch.policies.cost.file import get_costs
from edbatch.policies.cost.model import CostModel
from edbatch.policies.fsm.checkpoint import load_checkpoint
from edbatch.policies.fsm.settings import Settings
from edbatch.policies.fsm.state_machine import StateMachine
from edbatch.policies.fsm.training_record import check_workload
from edbatch.policies.fsm.training_run import Progress, TrainingRun
from edbatch.policies.heuristics import Greedy
from edbatch.schedule.examples import tree
from edbatch.schedule.interrupt import keyboard_interrupts


def train_policy(
    graphs: Sequence[GraphStructure],
    held_out: Sequence[GraphStructure],
    *,
    encoding: str = "fall",
    trials: int = 1000,
    seed: int = 0,
    n_step: int = 4,
    alpha: float = 0.5,
    learning_rate: float = 0.05,
    epsilon: float = 0.3,
    generations: int = 12,
    patience: int = 15,
    workload: str = "",
    progress: Progress | None = None,
    checkpoint: str | PathLike[str] | None = None,
    resume: bool = False,
    costs: CostModel | str | PathLike[str] | None = None,
    if_needed: bool = False,
) -> StateMachine:
    """Trains a state machine by Q-learning; see `edbatch.policies.fsm.q_learning`.

    Trial k runs minibatch k modulo the number of minibatches; random actions become
    rarer from trial to trial. After some trials the table is evaluated by its number of
    batches on the held-out minibatches, without random actions, and the best table is
    kept; in a tie the one with fewer unseen states, then the earlier one. Training ends
    when every held-out minibatch meets its lower bound without unseen states, or when
    the last `patience` evaluations brought no improvement.

    A table that is worse than the greedy heuristic is not returned. The result is then
    a machine without states, which follows that heuristic; its training record says so.

    Args:
        graphs: Minibatches to train on, of the size that will be run: a policy trained
            on single instances is poor on minibatches.
        held_out: Minibatches to evaluate on, of the same model.
        encoding: `"fall"`, `"sort"`, `"max"` or `"base"`.
        trials: Maximum number of episodes.
        seed: The same seed and graphs give the same policy, bit for bit.
        n_step: Number of steps after which the table estimates the rest of a return.
        alpha: Weight of the ratio of the sufficient condition in the reward; not used
            with `"fall"`, whose encoding is more informative.
        learning_rate: Minimum weight of a new return in a table entry.
        epsilon: Share of random actions in the first trial; decreases linearly to 0.
        generations: Number of generations that tune the weights of the smoothed bound,
            for `"fall"`.
        patience: Number of evaluations without improvement after which to stop.
        workload: Description of the training data, for the training record.
        progress: Called as ``progress(trial, trials, batches, bound)`` with the mean
            batches and lower bound on the held-out minibatches after each evaluation.
        checkpoint: File for the state of training, written at each evaluation and when
            training is interrupted.
        resume: Continue from `checkpoint`; the policy is that of an uninterrupted
            training.
        costs: Measured costs, or a file of ``edbatch calibrate``. With costs, the
            policy learns to minimize the cost of batches instead of their number, and
            evaluations, `progress` and the record contain costs, in units of an average
            batch.
        if_needed: Skip training if the greedy heuristic meets the lower bound on every
            minibatch: the machine then has no states and follows that heuristic.

    Returns:
        The machine, with a `TrainingRecord`. After `KeyboardInterrupt` it is the best
        machine so far, and its record says that training was interrupted. The exception
        is raised only before training begins, while Numba compiles.

    Raises:
        PolicyError: There are no graphs, they belong to different models, an argument
            is out of range, or the checkpoint cannot be used.

    Example:
        >>> from edbatch.schedule.examples import tree
        >>> graph = tree("((ab)cb)c")
        >>> machine = train_policy([graph], [graph])
        >>> machine.training.stopped, machine.schedule(graph).num_batches
        ('lower bound', 4)
    """
    check_number(PolicyError, "'seed'", seed, whole=True)
    check_workload(workload)
    if checkpoint is not None:
        checkpoint = as_path(PolicyError, "'checkpoint'", checkpoint)
    if progress is not None and not callable(progress):
        raise PolicyError(
            "'progress' is a function of the trial, the trials, the batches and the"
            f" bound but is {shown(progress)}; leave it out for none"
        )
    graphs = list_of(PolicyError, "'graphs'", graphs, "the structure of a graph")
    held_out = list_of(PolicyError, "'held_out'", held_out, "the structure of a graph")
    settings = Settings(
        encoding=encoding,
        trials=trials,
        seed=int(seed),
        n_step=n_step,
        alpha=alpha,
        learning_rate=learning_rate,
        epsilon=epsilon,
        generations=generations,
        patience=patience,
    )
    settings.check(graphs, held_out)
    measured = get_costs(costs)
    # A schedule that meets the bound has, for each type, as many batches as the longest
    # chain of the type, so it has the least cost, too.
    is_needed = (
        not if_needed or resume or not meets_bounds(Greedy(), [*graphs, *held_out])
    )
    if is_needed:
        warm_up(encoding)
    run = TrainingRun(settings, graphs, held_out, progress, checkpoint, measured)
    if not is_needed:
        return run.machine("greedy", workload)
    if resume:
        if checkpoint is None:
            raise PolicyError(
                "training resumes from a checkpoint but 'checkpoint' is None; name the"
                " file that the interrupted training wrote"
            )
        run.state = load_checkpoint(checkpoint, run.identity, run.num_types)
    with keyboard_interrupts():
        stopped = run.finish()
        return run.machine(stopped, workload)


@functools.cache
def warm_up(encoding: str = "fall") -> None:
    """Compiles the code of training with an encoding, or loads it from Numba's cache.

    `train_policy` calls it before its clock starts: the first time on a machine it
    takes up to a minute, which does not count as training.

    Args:
        encoding: As for `train_policy`.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed; there is no policy to keep yet.

    Example:
        >>> warm_up("sort")
    """
    settings = Settings(
        encoding=encoding,
        trials=1,
        seed=0,
        n_step=1,
        alpha=0.0,
        learning_rate=1.0,
        epsilon=1.0,
        generations=1,
        patience=1,
    )
    graph = tree("(((a)b)c((a)c)b)d")  # no schedule of it meets the bound
    run = TrainingRun(settings, [graph], [graph], None, None, None)
    stopped = run.finish(keep=False)
    if stopped == "interrupted":  # ends the training that this prepares
        raise KeyboardInterrupt
    run.machine(stopped, "")
