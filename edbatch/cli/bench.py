"""`edbatch bench`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from edbatch.cli import options
from edbatch.cli.console import print_json, print_out, print_table, progress_bar
from edbatch.cli.one_sentence import CommandError

if TYPE_CHECKING:
    from edbatch.benchmark import BenchmarkConfig, BenchmarkResult
    from edbatch.benchmark.procedure import Progress
    from edbatch.cli.task import Task

# Two tables, each narrow enough for a small terminal: fields of a row and their heads.
_SPEED = {
    "system": "system",
    "forward_ms": "forward",
    "noise_percent": "± %",
    "ratio_to_exact": "to exact",
    "record_ms": "record",
    "plan_ms": "plan",
    "instances_per_s": "instances/s",
}
_COST = {
    "system": "system",
    "compiles": "compiles",
    "compile_s": "seconds",
    "batches": "batches",
    "in_place_percent": "in place %",
    "host_percent": "plan %",
    "percent_of_peak": "peak %",
    "max_abs_error": "max error",
}
# Replaces `_SPEED` when policies are compared: batches next to the time they take.
_POLICIES = {
    "system": "policy",
    "batches": "batches",
    "forward_ms": "forward",
    "noise_percent": "± %",
    "plan_ms": "plan",
    "instances_per_s": "instances/s",
}
_TRAIN = {
    "train_ms": "train",
    "noise_percent": "± %",
    "ratio_to_forward": "to forward",
    "ratio_to_exact": "to exact",
    "compiles": "compiles",
    "compile_s": "seconds",
    "max_gradient_error": "max error",
}


@options.spread
def bench(
    *,
    task_options: options.TaskOptions,
    hidden: options.Hidden = None,
    batch_size: options.BatchSize = 64,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help=(
                "The policy of the system 'edbatch': depth, agenda, agenda-remaining,"
                " greedy, zoo:NAME for a ready-made one, or a file of train-policy."
                " Without it one is trained first, unless greedy suffices, on"
                " minibatches that are not measured."
            ),
        ),
    ] = None,
    systems: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help=(
                "What to compare, of: edbatch, agenda, depth, unbatched, scan,"
                " scan-sorted, levels, exact; all of these by default. And edbatch"
                " with parts of its memory planner: planner-off, planner-layout,"
                " planner-packing, planner-both, planner-auto, planner-hoisting (with"
                " packing)."
            ),
        ),
    ] = None,
    policies: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help=(
                "Compare policies instead of systems: batches and the forward time of"
                " edbatch under each. 'learned' is the policy of --policy with the"
                " guard of eb.batch; the others are named as for --policy."
            ),
        ),
    ] = None,
    planner: Annotated[
        bool,
        typer.Option(
            "--planner",
            metavar="",
            help=(
                "Compare edbatch without its memory planner, with layout only, with"
                " packing only, with both, with the default settings (auto), and with"
                " packing and hoisting; short for --systems with these six."
            ),
        ),
    ] = False,
    train: Annotated[
        bool,
        typer.Option(
            "--train",
            metavar="",
            help=(
                "Also measure the value and gradient of a loss, without an optimiser."
            ),
        ),
    ] = False,
    keep_memory: Annotated[
        bool,
        typer.Option(
            "--keep-memory",
            metavar="",
            help=(
                "Let the process keep the memory that calls free, for all systems, as"
                " edbatch.keep_memory() does; helps gradients on CPUs."
            ),
        ),
    ] = False,
    rounds: Annotated[
        int,
        typer.Option(
            metavar="R", min=1, help="How often to time each system on a minibatch."
        ),
    ] = 5,
    minibatches: options.Minibatches = 5,
    seed: options.Seed = 0,
    compiles_only: Annotated[
        bool,
        typer.Option(
            "--compiles-only",
            help=(
                "Only run all minibatches through edbatch and count how often it"
                " compiles; nothing is compared. Try it with --minibatches 50."
            ),
        ),
    ] = False,
    json: options.Json = False,
) -> None:
    """Compare the speed of edbatch with other ways to batch.

    The model is a ready workload, tree-lstm by default, with random parameters, or
    your own model with the parameters of --params. All systems are warmed up, then
    take turns on the same minibatches; their outputs are compared with those of the
    unbatched model. Times are per minibatch; 'to exact' is the forward pass relative
    to a program compiled for exactly that minibatch, 'max error' is the maximum over
    every output of every instance. Keep the machine otherwise idle.

    Example: edbatch bench --workload tree-lstm --hidden 128 --batch-size 64

    Example: edbatch bench --workload lattice-lstm --policy zoo:lattice-lstm --policies
    learned,agenda,greedy

    Example: edbatch bench --model my_model:model --params my_model:params --instances
    my_model:instances --systems edbatch,unbatched,levels
    """
    import edbatch as eb
    from edbatch.benchmark import PLANNERS, SYSTEMS, BenchmarkConfig
    from edbatch.cli.task import load_task

    if keep_memory and not eb.keep_memory():
        raise CommandError(
            "--keep-memory needs the C library glibc but this system has another; leave"
            " it out"
        )
    _check_comparison(systems, policies, planner)
    default = tuple(PLANNERS) if planner else SYSTEMS

    task_options.check_hidden(hidden)
    given = {"arity": task_options.arity, "classify": task_options.classify}
    own = task_options.model
    config = BenchmarkConfig(
        workload=own or task_options.workload or "tree-lstm",
        options={name: value for name, value in given.items() if value is not None},
        hidden=None if own else hidden or 128,
        batch_size=batch_size,
        data=tuple(task_options.data or ()),
        policy=policy,
        systems=_names(systems) if systems is not None else default,
        policies=_names(policies or ""),
        rounds=rounds,
        minibatches=minibatches,
        seed=seed,
        compiles_only=compiles_only,
        train=train,
    )
    task = None
    if not task_options.is_ready:
        task = load_task(task_options, seed, config.most_instances)
    result = _run(config, task)
    if json:
        print_json(result.to_json())
    else:
        _print(result)


def _check_comparison(systems: str | None, policies: str | None, planner: bool) -> None:
    """Checks that at most one of --systems, --policies and --planner is given."""
    if planner and systems is not None:
        raise CommandError(
            "--planner names the systems itself but --systems is given, too; leave one"
            " of them out"
        )
    if policies is not None and (planner or systems is not None):
        raise CommandError(
            "--policies compares edbatch with itself but"
            f" {'--planner' if planner else '--systems'} is given, too; leave one of"
            " them out"
        )
    if policies is not None and not _names(policies):
        raise CommandError(
            "--policies names no policy; give some, such as learned,agenda,greedy"
        )


def _names(systems: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in systems.split(",") if each.strip())


def _run(config: "BenchmarkConfig", task: "Task | None") -> "BenchmarkResult":
    from edbatch.benchmark import run_benchmark

    with progress_bar() as bar:
        shown = bar.add_task("Preparing", total=None)

        def progress(done: int, total: int, what: str) -> None:
            what = what.capitalize()
            bar.update(shown, completed=done, total=total, description=what)

        if task is None:
            return run_benchmark(config, progress)
        return _run_own(config, progress, task)


def _run_own(
    config: "BenchmarkConfig", progress: "Progress", task: "Task"
) -> "BenchmarkResult":
    """Measures the user's own model, turning its errors into one sentence."""
    from edbatch.benchmark import MeasuredModel, run_benchmark
    from edbatch.benchmark.minibatches import with_arrays
    from edbatch.cli import user_code
    from edbatch.cli.minibatches import refusing_values, say_if_repeated

    say_if_repeated(config.batch_size, len(task.instances))
    params = with_arrays(task.params, config.seed)
    model = MeasuredModel(config.workload, task.model, params, task.instances)
    with user_code.running("the model"), task.params_hint(), refusing_values():
        return run_benchmark(config, progress, model)


def _print(result: "BenchmarkResult") -> None:
    config, facts = result.config, result.minibatch
    hidden = "" if config.hidden is None else f", hidden {config.hidden}"
    title = (
        f"{config.workload}{hidden}: {config.minibatches} minibatches"
        f" of {facts.instances} instances, {facts.nodes:,.0f} nodes,"
        f" {facts.gflop:.3g} Gflop, lower bound {facts.lower_bound:.1f} batches;"
        " milliseconds per minibatch"
    )
    cost = _COST
    if config.policies:
        _print_columns(result, _POLICIES, title)
        cost = {"system": "policy"} | {
            k: v for k, v in _COST.items() if k not in _POLICIES
        }
    else:
        _print_columns(result, _SPEED, title)
    _print_columns(
        result,
        cost,
        "Programs and the seconds to compile them, batches, plan in percent of forward,"
        " speed in percent of the peak, difference from the unbatched model",
    )
    if not config.policies:
        _print_shares(result)
    _print_train(result)
    _print_programs(result)
    for row in result.rows:
        print_out(f"{row.system}: {row.about}.")
    for name, reason in result.left_out.items():
        print_out(f"{name}: left out, because {reason}.")
    print_out(f"Policy of edbatch: {result.policy}.")
    if result.peak_gflops is not None:
        print_out(
            f"Peak: {result.peak_gflops:.0f} Gflop/s, the fastest matrix"
            f" product measured on this {result.device['kind']} with"
            f" {result.device['cores']} cores."
        )


def _print_shares(result: "BenchmarkResult") -> None:
    """Prints the total time of a minibatch and its breakdown by stage."""
    limit = result.rows[0].limit_ms if result.rows else None
    heads = ["system", "fresh", "kept", "record %", "plan %", "run %"]
    rows: list[list[Any]] = []
    for row in result.rows:
        stages = (row.record_ms, row.plan_ms, row.forward_ms)
        shares = [round(100 * each / row.fresh_ms) for each in stages]
        own: list[Any] = [row.system, round(row.fresh_ms, 2), round(row.kept_ms, 2)]
        if limit:
            of_limit = [round(each / limit, 2) for each in (row.fresh_ms, row.kept_ms)]
            rows.append([*own, *shares, *of_limit])
        else:
            rows.append([*own, *shares])
    if limit:
        heads += ["fresh / limit", "kept / limit"]
    title = (
        "Milliseconds per minibatch of new instances (record, plan, run) and of kept"
        " recordings (plan, run); shares of the former"
    )
    if limit:
        title += (
            f"; the limit, {limit:.3g} ms, is the time of the matrix products at"
            " peak speed"
        )
    print_table(heads, rows, title)


def _print_train(result: "BenchmarkResult") -> None:
    measured = [(row.system, row.train) for row in result.rows if row.train]
    if measured:
        rows = [
            [system, *(_cell(name, getattr(each, name)) for name in _TRAIN)]
            for system, each in measured
        ]
        print_table(
            ["system", *_TRAIN.values()],
            rows,
            "Value and gradient of a loss, the squares of all outputs: milliseconds per"
            " minibatch, programs and the seconds to compile them, difference from the"
            " unbatched model's gradient relative to its largest numbers",
        )


def _print_programs(result: "BenchmarkResult") -> None:
    counted = [(row.system, row.program) for row in result.rows if row.program]
    if counted:
        print_table(
            ["system", "loops", "operations", "products", "gathers", "slices"],
            [
                [
                    system,
                    each.loops,
                    *(
                        round(count, 1)
                        for count in (
                            each.operations,
                            each.products,
                            each.gathers,
                            each.slices,
                        )
                    ),
                ]
                for system, each in counted
            ],
            "Compiled programs: loops, and the mean number in each of HLO operations (a"
            " fusion is one), matrix products, gathers, reads and writes of slices",
        )


def _print_columns(
    result: "BenchmarkResult", columns: dict[str, str], title: str
) -> None:
    """Prints the columns in which at least one system has a value."""
    used = [
        name
        for name in columns
        if any(getattr(row, name) is not None for row in result.rows)
    ]
    rows = [[_cell(name, getattr(row, name)) for name in used] for row in result.rows]
    print_table([columns[name] for name in used], rows, title)


def _cell(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name in ("max_abs_error", "max_gradient_error"):
        return f"{value:.1e}"
    if name in (
        "noise_percent",
        "host_percent",
        "instances_per_s",
        "in_place_percent",
    ):
        return round(value)
    return round(value, 2) if isinstance(value, float) else value
