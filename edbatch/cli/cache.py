"""`edbatch cache`."""

import os
from pathlib import Path
from typing import Annotated

import typer

from edbatch.cli import options
from edbatch.cli.console import print_fields, print_json, say
from edbatch.cli.one_sentence import JAX_FOLDER, CommandError, cache_folder


def cache(
    clear: Annotated[
        bool, typer.Option("--clear", metavar="", help="Remove all programs.")
    ] = False,
    info: Annotated[
        bool,
        typer.Option(
            "--info",
            metavar="",
            help="Show where the programs are and how large they are; the default.",
        ),
    ] = False,
    json: options.Json = False,
) -> None:
    """Show or clear the cache of compiled programs.

    Commands store the programs that they compile in the user's cache folder, so that
    the next run need not compile them again. Set EDBATCH_CACHE_DIR to another folder,
    or to 'off' to disable the cache. JAX_COMPILATION_CACHE_DIR, which JAX itself
    reads, takes precedence.

    Example: edbatch cache --clear
    """
    import jax

    from edbatch.compilation import cache_contents, clear_compilation_cache

    if clear and info:
        raise CommandError("--clear and --info are two commands; give one of them")
    folder = cache_folder()
    if folder is None:
        raise CommandError(
            "there is no cache of compiled programs, because EDBATCH_CACHE_DIR is 'off'"
            " or there is no home folder; set EDBATCH_CACHE_DIR to a folder"
        )
    if (problem := _problem(folder)) is not None:
        named = getattr(jax.config, JAX_FOLDER)
        variable = "JAX_COMPILATION_CACHE_DIR" if named else "EDBATCH_CACHE_DIR"
        message = f"no program is kept in {folder}, {problem} {variable} to a folder"
        if clear:
            raise CommandError(f"{message}; nothing is removed")
        say(f"Note: {message}")
    found = clear_compilation_cache(folder) if clear else cache_contents(folder)
    report = {
        "folder": str(found.folder),
        "usable": problem is None,
        "removed" if clear else "programs": found.programs,
        "files": found.files,
        "megabytes": found.size_bytes / 1e6,
    }
    if json:
        print_json(report)
    else:
        print_fields(report.items())


def _problem(folder: Path) -> str | None:
    """Returns why programs cannot be stored in a folder, or None if they can."""
    from edbatch.compilation.cache import broken_link

    if (link := broken_link(folder)) is not None:
        return f"because {link} is a broken link; fix the link, or set"
    there = next(each for each in (folder, *folder.parents) if os.path.exists(each))
    if os.path.isdir(there) and os.access(there, os.W_OK):
        return None
    if there == folder:
        return "which is not a writable folder; set"
    return f"which cannot be made, because {there} is not a writable folder; set"
