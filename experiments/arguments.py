"""Command lines of the scripts in this folder, from their dataclasses of arguments."""

import argparse
from collections.abc import Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def option(default: Any, text: str) -> Any:
    """Makes the dataclass field of an option.

    Args:
        default: The default, whose type is the option's type; a tuple accepts several
            words.
        text: The help text, a sentence.

    Returns:
        The field.
    """
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class SpeedArguments:
    """Arguments shared by the scripts that time ready workloads on sampled inputs."""

    workloads: str = option(
        "tree-lstm,lattice-lstm,bilstm-tagger", "Which ready workloads."
    )
    hidden: int = option(64, "Length of the models' states.")
    batch_size: int = option(64, "Instances per minibatch.")
    seed: int = option(0, "Seed of inputs, parameters and minibatches.")


def parse_arguments(
    into: type[T], about: str | None, words: Sequence[str] | None = None
) -> T:
    """Parses a command line.

    Args:
        into: A dataclass with fields made by `option`.
        about: The script's docstring; its first line is the description.
        words: The command line's words; by default those of the process.

    Returns:
        An instance of the dataclass.
    """
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    for each in fields(into):  # type: ignore[arg-type]
        parser.add_argument(
            "--" + each.name.replace("_", "-"),
            default=each.default,
            help=each.metadata["help"] + " (default: %(default)s)",
            **_reading(each),
        )
    found = vars(parser.parse_args(words))
    return into(
        **{
            name: tuple(value) if isinstance(value, list) else value
            for name, value in found.items()
        }
    )


def _reading(each: Field[Any]) -> dict[str, Any]:
    if isinstance(each.default, tuple):
        return {"type": str, "nargs": "+"}
    if isinstance(each.default, bool):
        return {"action": argparse.BooleanOptionalAction}
    return {"type": Path if isinstance(each.default, Path) else type(each.default)}
