"""`edbatch run`."""

from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edbatch.cli import options
from edbatch.cli.console import print_fields, print_json, say, stage
from edbatch.cli.one_sentence import CommandError

if TYPE_CHECKING:
    from edbatch.models import Workload
    from edbatch.models.shared.workload import Vocabularies

# Possible paths of a ready workload's word embeddings.
_WORDS = ("embedding", "encoder.embedding", "word_embedding")


def run(
    workload: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help=f"The workload: {options.NAMES}.",
        ),
    ],
    data: options.Data = None,
    arity: options.Arity = None,
    classify: options.Classify = None,
    policy: options.Policy = "greedy",
    batch_size: options.BatchSize = 64,
    hidden: Annotated[
        int, typer.Option(metavar="H", min=1, help="Hidden size of random parameters.")
    ] = 128,
    params: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=(
                "Parameters, an .npz file as written by --save-params; random by"
                " default."
            ),
        ),
    ] = None,
    save_params: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the parameters, and the words by number, to this .npz file.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=(
                "Write the results to this .npz file: one array per output, a row per"
                " instance. Lists are concatenated, with an array of their lengths."
            ),
        ),
    ] = None,
    samples: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Without --data: how many instances to sample."
        ),
    ] = 1024,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Run a ready workload in minibatches with a policy.

    Prints the throughput, from instances to results: recording, planning and running.
    Minibatches that waited for a compilation are not counted.

    Example: edbatch run --workload tree-lstm --data trees.ptb --policy tree.json --out
    states.npz
    """
    import numpy as np

    from edbatch.cli.batched_run import run_batched
    from edbatch.cli.output_file import check_distinct, check_writable
    from edbatch.cli.params_file import check_vocabulary, read_arrays, save_arrays
    from edbatch.cli.params_file import save_params as save
    from edbatch.cli.task import find_workload
    from edbatch.policies import get_policy

    check_writable("--out", out)
    check_writable("--save-params", save_params)
    check_distinct(
        {"--out": out, "--save-params": save_params},
        {"--data": data, "--params": params, "--policy": policy},
    )
    chosen = get_policy(policy)
    vocabulary, arrays = None, None
    sizes: dict[str, int] = {}
    if params is not None:
        arrays, vocabulary = read_arrays(params)
        sizes, hidden = sizes_of(workload, arrays, hidden)
    ready = find_workload(workload, arity=arity, classify=classify, **sizes)
    if params is not None:
        check_vocabulary(ready, vocabulary, params)
    values = _values(ready, hidden, seed, params, arrays)
    if data:
        instances, vocabulary = _read(ready, data, vocabulary)
    else:
        instances = ready.sample(np.random.default_rng(seed), samples)
    if save_params is not None:
        save(save_params, values, vocabulary)
    report, results = run_batched(
        ready, chosen, values, instances, batch_size, keep=out is not None
    )
    report |= {"hidden": hidden, "out": None if out is None else str(out)}
    if out is not None:
        save_arrays(out, results)
    if json:
        print_json(report)
        return
    print_fields((name.replace("_", " "), value) for name, value in report.items())
    if report["instances_per_s"] is None:
        say("All minibatches waited for a compilation; a throughput needs more.")


def _values(
    workload: "Workload",
    hidden: int,
    seed: int,
    params: Path | None,
    arrays: "dict[str, Any] | None",
) -> Any:
    """Returns random parameters, or those read from a file."""
    import jax

    from edbatch.cli.params_file import fill

    key = jax.random.key(seed)
    if params is None or arrays is None:
        return workload.init_params(key, hidden)
    shapes = jax.eval_shape(lambda key: workload.init_params(key, hidden), key)
    return fill(shapes, arrays, params)


def sizes_of(
    workload: str, arrays: "dict[str, Any]", hidden: int
) -> tuple[dict[str, int], int]:
    """Derives a workload's options and the hidden size from the shapes of parameters.

    Args:
        workload: Name of the workload.
        arrays: Its parameters by dotted path.
        hidden: The hidden size to use if the shapes do not determine it.

    Returns:
        The options and the hidden size.
    """
    from edbatch.models import WORKLOADS

    found: dict[str, int] = {}
    embedding = next((arrays[name] for name in _WORDS if name in arrays), None)
    output = arrays.get("classify.b")
    if embedding is not None and embedding.ndim == 2:
        found["vocabulary_size"], hidden = embedding.shape
    if output is not None and output.ndim == 1:
        known = WORKLOADS.get(workload)
        for name in ("num_labels", "num_tags", "num_answers"):
            if known is not None and name in signature(known).parameters:
                [found[name]] = output.shape
    return found, hidden


def _read(
    workload: "Workload", data: list[Path], vocabulary: "Vocabularies | None"
) -> "tuple[list[Any], Vocabularies]":
    with stage(f"Reading {' '.join(map(str, data))}"):
        text = workload.read_text(data)
        vocabulary = vocabulary or workload.vocabulary(text)
        if len(vocabulary) > workload.vocabulary_size:
            raise CommandError(
                f"the parameters have vectors for {workload.vocabulary_size} words but"
                f" their vocabulary has {len(vocabulary)}; save them together"
            )
        return workload.number(text, vocabulary), vocabulary
