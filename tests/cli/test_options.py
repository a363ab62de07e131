"""Groups of command-line options as dataclasses."""

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from edbatch.cli.options import TaskOptions, spread
from edbatch.errors import EdbatchError


@dataclass(frozen=True)
class Pair:
    """Two options, one of them without a default."""

    first: Annotated[int, typer.Option(help="The first one.")]
    second: Annotated[str, typer.Option()] = "b"


@dataclass(frozen=True)
class Other:
    """An option with the name of a group."""

    pair: Annotated[int, typer.Option()] = 7


@pytest.fixture
def app():
    found = typer.Typer()

    @found.command()
    @spread
    def show(
        *,
        pair: Pair,
        other: Annotated[bool, typer.Option("--other")] = False,
        more: Other,
    ) -> None:
        """Show options."""
        print(pair, other, more)

    return found


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ("--first 1", "Pair(first=1, second='b') False Other(pair=7)"),
        (
            "--other --pair 2 --second c --first 3",
            "Pair(first=3, second='c') True Other(pair=2)",
        ),
    ],
)
def test_fields_are_options(app, words, printed):
    found = CliRunner().invoke(app, words.split())
    assert found.stdout.strip() == printed


def test_an_option_without_default_is_asked_for(app):
    found = CliRunner().invoke(app, ["--second", "c"])
    assert found.exit_code == 2 and "--first" in found.output


def test_help_has_the_fields(app):
    text = CliRunner().invoke(app, ["--help"]).stdout
    assert "The first one." in text and "Show options." in text
    assert text.index("--first") < text.index("--other") < text.index("--pair")


def test_a_model_of_the_users_has_its_hidden_size():
    TaskOptions(model="a:b").check_hidden(None)
    TaskOptions(workload="tree-lstm").check_hidden(3)
    with pytest.raises(EdbatchError, match="--hidden belongs to the ready workloads"):
        TaskOptions(model="a:b").check_hidden(3)
