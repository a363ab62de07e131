"""The commands `edbatch` and `train-policy`.

Commands import their dependencies when they run, so that ``--help`` is fast.
"""

import io
import os
import sys
from typing import Annotated

import typer

from edbatch.cli.bench import bench
from edbatch.cli.cache import cache
from edbatch.cli.calibrate import calibrate
from edbatch.cli.compare import compare
from edbatch.cli.demo import demo
from edbatch.cli.explain import explain
from edbatch.cli.inspect import inspect
from edbatch.cli.one_sentence import CachedCommand, OneSentenceCommand, OneSentenceGroup
from edbatch.cli.run import run
from edbatch.cli.serve import serve
from edbatch.cli.train_policy import train_policy
from edbatch.cli.workloads import workloads
from edbatch.ctrl_c import end_at_ctrl_c, ignore_ctrl_c

app = typer.Typer(
    name="edbatch",
    cls=OneSentenceGroup,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
train_policy_app = typer.Typer(
    name="train-policy",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def edbatch(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", metavar="", help="Print the version and exit.")
    ] = False,
) -> None:
    """Automatic batching of dynamic neural networks on JAX.

    New here? `edbatch demo` shows in a minute what edbatch does.

    A command that fails prints one sentence and exits with code 2; with EDBATCH_DEBUG=1
    in the environment it ends with Python's traceback and code 1.
    """
    if version:
        from importlib import metadata

        try:
            typer.echo(f"edbatch {metadata.version('edbatch')}")
        except metadata.PackageNotFoundError:
            typer.echo("edbatch (not installed, run from its sources)")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


COMMANDS = (
    *(demo, train_policy, compare, inspect, explain, run, serve, bench, calibrate),
)
for command in COMMANDS:
    app.command(cls=CachedCommand)(command)
app.command(cls=OneSentenceCommand)(workloads)
app.command(cls=OneSentenceCommand)(cache)
train_policy_app.command(cls=CachedCommand)(train_policy)


def main() -> None:
    """Runs `edbatch`."""
    _run(app, "edbatch")


def train_policy_main() -> None:
    """Runs `train-policy`."""
    _run(train_policy_app, "train-policy")


def _run(command: typer.Typer, name: str) -> None:
    end_at_ctrl_c()
    _open_closed_streams()
    _print_what_can_be_encoded()
    try:
        command(prog_name=name)
    finally:
        ignore_ctrl_c()


def _open_closed_streams() -> None:
    """Opens the null device for a stream that the command was started without."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def _print_what_can_be_encoded() -> None:
    """Replaces characters that stdout cannot encode with question marks."""
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper) and out.errors == "strict":
        out.reconfigure(errors="replace")
