"""`edbatch compare`."""

from typing import Annotated

import typer

from edbatch.cli import options
from edbatch.cli.console import print_json, stage


def compare(
    policy: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="The policy to compare, the 'learned' row: a file of train-policy.",
        ),
    ],
    workload: options.Workload = None,
    data: options.Data = None,
    arity: options.Arity = None,
    classify: options.Classify = None,
    model: options.Model = None,
    instances: options.Instances = None,
    params: options.Params = None,
    batch_size: options.BatchSize = 64,
    minibatches: options.Minibatches = 16,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Compare a trained policy with the heuristics of the field.

    All policies schedule the same minibatches, drawn by the seed from all of the data.
    Printed are means: batches per minibatch (fewer are better), the lower bound (no
    policy has fewer), the worst ratio of the two, how often the policy met a state that
    training never saw, and the time to find a schedule.

    Example: edbatch compare --workload tree-lstm --data trees.ptb --policy tree.json
    """
    import numpy as np

    from edbatch.cli.minibatches import draw, record
    from edbatch.cli.rows import compare_rows, print_rows
    from edbatch.cli.task import load_task
    from edbatch.policies import get_policy

    learned = get_policy(policy)
    task_options = options.TaskOptions(
        workload, data, arity, classify, model, instances, params
    )
    task = load_task(task_options, seed, batch_size * minibatches)
    rng = np.random.default_rng(seed)
    drawn = draw(np.arange(len(task.instances)), batch_size, minibatches, rng)
    [structures] = record(task, drawn)
    with stage("Scheduling"):
        rows = compare_rows(learned, structures)
    if json:
        print_json(rows)
        return
    title = (
        f"{task.description}: batches per minibatch of {batch_size},"
        f" mean of {minibatches}"
    )
    print_rows(rows, title)
