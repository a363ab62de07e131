"""Runs the code blocks of a documentation page.

Blocks of ``python`` run from top to bottom in one namespace. A block of ``text`` right
after one is its expected output; ``...`` in it matches anything, and any run of white
space matches any other. A block whose first line is
``# Not run in the tests: why`` is skipped.
"""

import contextlib
import doctest
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import typer

from edbatch.cli.main import app

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
_OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
NOT_RUN = "# Not run in the tests: "


class Block(NamedTuple):
    """A block of a page: its language, text, line, and whether it follows another."""

    kind: str
    text: str
    line: int
    follows: bool


def blocks_of(text: str) -> Iterator[Block]:
    end = 0
    for found in _BLOCK.finditer(text):
        follows = not text[end : found.start()].strip()
        yield Block(*found.groups(), text.count("\n", 0, found.start()) + 1, follows)
        end = found.end()


def run_page(path: Path) -> tuple[int, int]:
    """Runs a page; returns the numbers of blocks run and of outputs compared."""
    names: dict = {"__name__": "__main__"}
    printed: str | None = None
    ran = compared = 0
    for block in blocks_of(path.read_text(encoding="utf-8")):
        if block.kind == "python" and not block.text.startswith(NOT_RUN):
            printed = _printed(block, path, names)
            ran += 1
        elif block.kind == "text" and block.follows and printed is not None:
            check_printed(block.text, printed, f"{path.name}:{block.line}")
            compared += 1
            printed = None
        else:
            printed = None
    return ran, compared


def _printed(block: Block, path: Path, names: dict) -> str:
    # Line numbers of the page, so that an error points to its place there.
    code = compile("\n" * block.line + block.text, path.name, "exec")
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, names)
    return out.getvalue()


def check_printed(expected: str, printed: str, where: str) -> None:
    same = doctest.OutputChecker().check_output(expected, printed, _OPTIONS)
    assert same, f"{where} says\n{expected}\nbut this was printed:\n{printed}"


def commands_of(text: str) -> Iterator[str]:
    """The lines of the shell blocks, with continued lines joined, without comments."""
    for block in blocks_of(text):
        if block.kind == "sh":
            for line in block.text.replace("\\\n", " ").splitlines():
                if line.strip() and not line.lstrip().startswith("#"):
                    yield line.strip()


def check_command(line: str) -> None:
    """Raises a command line error if the command or an option does not exist."""
    words = shlex.split(line, comments=True)
    while words and "=" in words[0]:  # environment variables
        words.pop(0)
    program, *rest = words
    if program not in ("edbatch", "train-policy"):
        return
    command: Any = typer.main.get_command(app)
    if program == "train-policy":
        rest = [program, *rest]
    context = command.context_class(command, info_name="edbatch")
    while hasattr(command, "get_command"):
        assert rest, f"no command in: {line}"
        if rest == ["--help"]:
            return
        found = command.get_command(context, rest[0])
        assert found is not None, f"no command {rest[0]!r} in: {line}"
        command, rest = found, rest[1:]
        context = command.context_class(command, parent=context, info_name=rest[:1])
    command.make_parser(context).parse_args(list(rest))
