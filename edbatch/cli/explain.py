"""`edbatch explain`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edbatch.cli import options
from edbatch.cli.console import print_json, say, stage
from edbatch.cli.one_sentence import CommandError

if TYPE_CHECKING:
    from edbatch import Batched, Explanation
    from edbatch.cli.task import Task
    from edbatch.policies import CostModel


@options.spread
def explain(
    task_options: options.TaskOptions,
    policy: options.Policy = "greedy",
    batch_size: options.BatchSize = 64,
    hidden: options.Hidden = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            metavar="",
            help="Measure how long each batch takes, with random parameters.",
        ),
    ] = False,
    costs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=(
                "Predict how long each batch takes, from the costs that edbatch"
                " calibrate measured."
            ),
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        options.picture("the batches over time", "With --measure or --costs. "),
    ] = None,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Explain what a minibatch costs, type by type, and what keeps types apart.

    Each row is a type of operation, written as cell@parameters/number of operands: its
    nodes; its batches, and the least that any schedule needs; padding rows; bytes of
    operands that batches read in place; multiplications and additions of matrix
    products. Then follows a list of types of one cell that could share batches but do
    not: the reason, the number of batches they would have as one type, and what to
    change.

    Example: edbatch explain --workload lattice-lstm --measure --plot batches.png
    """
    import numpy as np

    import edbatch as eb
    from edbatch.cli.minibatches import draw, say_if_repeated
    from edbatch.cli.output_file import check_distinct, check_writable
    from edbatch.cli.task import load_task
    from edbatch.policies import get_policy, load_costs

    task_options.check_hidden(hidden)
    _check(measure, costs, plot)
    if plot is not None:
        from edbatch.cli.pictures import check_suffix

        check_suffix(plot)
        check_writable("--plot", plot)
        read = {"--data": task_options.data, "--policy": policy, "--costs": costs}
        check_distinct({"--plot": plot}, read)
    chosen = get_policy(policy)
    known = None if costs is None else load_costs(costs)
    if costs is not None and known is not None:
        hidden = _hidden_of(known, costs, hidden)
    task = load_task(task_options, seed, batch_size, hidden or 128)
    rng = np.random.default_rng(seed)
    say_if_repeated(batch_size, len(task.instances))
    [own] = draw(np.arange(len(task.instances)), batch_size, 1, rng)
    batched = eb.batch(task.model, chosen, params=task.params, costs=known)
    found = _explain(batched, task, [task.instances[int(k)] for k in own], measure)
    if json:
        print_json(found.to_json())
    else:
        _print(found, f"{task.description}, a minibatch of {batch_size}")
    if plot is not None:
        from edbatch.cli.pictures import draw_timeline

        draw_timeline(found, plot)
        say(f"The picture is in {plot}.")


def _check(measure: bool, costs: Path | None, plot: Path | None) -> None:
    if measure and costs is not None:
        raise CommandError(
            "times are either measured or predicted but --measure and --costs were both"
            " given; leave one out"
        )
    if plot is not None and not measure and costs is None:
        raise CommandError(
            "--plot draws batches over time but no times were asked for; add --measure,"
            " or --costs FILE of edbatch calibrate"
        )


def _hidden_of(known: "CostModel", file: Path, hidden: int | None) -> int | None:
    """Returns the hidden size of the costs if recorded, otherwise the given one."""
    record = known.record
    if record is None or record.hidden is None:
        return hidden
    if hidden is None:
        say(
            f"The costs were measured with states of length {record.hidden}; this model"
            " gets states of the same length."
        )
    elif hidden != record.hidden:
        raise CommandError(
            f"the costs in {file} were measured with --hidden {record.hidden} but this"
            f" asks for --hidden {hidden}; leave it out, or run edbatch calibrate with"
            " it"
        )
    return record.hidden


def _explain(
    batched: "Batched", task: "Task", minibatch: list[Any], measure: bool
) -> "Explanation":
    """Explains a minibatch, attributing errors of the user's model to the model."""
    from edbatch.cli import user_code
    from edbatch.cli.minibatches import refusing_values

    with stage("Recording"), user_code.running("the model"), refusing_values():
        graph = batched.graph(minibatch)
    if not measure:
        with stage("Counting"):
            return batched.explain([graph])
    import jax

    with stage("Measuring"):
        values = _filled(task.params)
        rng = jax.random.key(0)
        return batched.explain([graph], params=values, measure=True, rng=rng)


def _filled(params: Any) -> Any:
    """Fills parameters given as shapes with small random numbers, for timing only."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    rng = np.random.default_rng(0)

    def values(leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return jnp.zeros(leaf.shape, leaf.dtype)
        return jnp.asarray(0.1 * rng.standard_normal(leaf.shape), leaf.dtype)

    return jax.tree.map(values, params)


def _print(found: "Explanation", title: str) -> None:
    from edbatch.cli.table import new_console, printable

    console = new_console()
    console.print(printable(title), markup=False)
    console.print(found)
