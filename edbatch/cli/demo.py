"""`edbatch demo`."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edbatch.cli import options
from edbatch.cli.console import print_json, print_out, say, stage

if TYPE_CHECKING:
    from edbatch.cli.demo_tour import Tour

Tell = Callable[[str], None]


def demo(
    context: typer.Context,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help=(
                "The folder to save the policy in, created if it is missing; a new"
                " temporary folder by default."
            ),
        ),
    ] = None,
    hidden: Annotated[
        int, typer.Option(metavar="H", min=1, help="Hidden size of the model.")
    ] = 64,
    batch_size: options.BatchSize = 64,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Show what edbatch does, in about a minute.

    Shows a model for which the default policy suffices. For a tree-LSTM with two
    compositions, where it does not, trains a policy on generated trees, saves it,
    compares it with the heuristics, runs the model in minibatches with it, and checks
    the results against the unbatched model.
    """
    from edbatch.cli.demo_tour import Tour
    from edbatch.cli.kernel_process import background_compilation, wait_for
    from edbatch.cli.rows import print_rows

    planning = context.with_resource(background_compilation())
    tell: Tell = say if json else print_out
    tour = Tour.start(out, hidden, batch_size, seed)
    tell(
        "A tree-LSTM reads a sentence along its parse tree. Each tree has another"
        " shape, so a minibatch of trees cannot simply be stacked. edbatch runs such a"
        " model, written for one tree, on whole minibatches.\n"
    )
    plain = _count(tour, batch_size, tell)
    _train(tour, tell)
    tell(
        "3. Compare it with heuristics, on trees that it was not trained on. Fewer"
        " batches are better; none can have fewer than the lower bound. 'learned' takes"
        " a heuristic's schedule where that has fewer."
    )
    rows = tour.compare()
    if not json:
        print_rows(rows, f"Batches per minibatch of {batch_size} trees")
    found = {"policy": str(tour.path), "one_composition": plain, "rows": rows}
    if planning is not None:
        with stage("Compiling the loops of planning (once per installation, by Numba)"):
            tour.compile_unbatched()  # while another core compiles the loops
            wait_for(planning)
    found |= _run(tour, hidden, tell)
    tell(
        "Next: train-policy --workload tree-lstm-2type --data YOUR_TREEBANK --out"
        " tree.json, which reports if you need no policy;"
        f" or in Python: eb.batch(model, '{tour.path}')"
    )
    if json:
        print_json(found)


def _count(tour: "Tour", batch_size: int, tell: Tell) -> dict[str, float]:
    """Compares the default policy with the bound; returns its batches and the bound."""
    plain = tour.count_plain()
    met = plain["batches"] == plain["lower_bound"]
    tell(
        f"1. Count the batches in which {batch_size} generated trees run. With one way"
        f" to compose two phrases they are {plain['batches']:.1f}, and no order of"
        f" operations has fewer than {plain['lower_bound']:.1f}: the default policy,"
        f" greedy, {'meets this bound; you need no other' if met else 'is near it'}.\n"
    )
    return plain


def _train(tour: "Tour", tell: Tell) -> None:
    """Trains a policy for the model for which the default does not suffice."""
    from edbatch.cli.train_policy import describe_outcome

    tell(
        "2. Let nominal phrases have a composition of their own. Now it matters which"
        " of the two runs first. Train a policy on"
        f" {tour.num_trees} trees: it learns that."
    )
    policy = tour.train()
    assert policy.training is not None, "train_policy keeps a record"
    outcome = describe_outcome(policy.training, len(policy.states))
    tell(f"   {outcome} The policy is in {tour.path}.\n")


def _run(tour: "Tour", hidden: int, tell: Tell) -> dict[str, Any]:
    """Runs the model with the policy, checks its results, and returns the figures."""
    tell(
        f"\n4. Load the saved policy and run the model under it, hidden size {hidden}."
    )
    speed = tour.run()
    ratio = speed["instances_per_s"] / speed["unbatched_per_s"]
    tell(
        f"   one tree at a time {speed['unbatched_per_s']:,.0f} trees/s; batched"
        f" {speed['instances_per_s']:,.0f} trees/s, {ratio:.1f} times as fast;"
        f" the first two calls took {speed['compile_s']:.1f} s, mostly to compile\n"
    )
    tell("5. Check every number, and the gradients, against the model of one tree.")
    checked = tour.verify()
    tell(
        f"   {checked['outputs']:,} outputs of {checked['instances']} trees: largest"
        f" difference {checked['max_output_error']:.1e}; gradients:"
        f" {checked['max_gradient_error']:.1e}\n"
    )
    return {**speed, **checked}
