"""`edbatch cache`."""

import os
from typing import Annotated

import typer

from edbatch.cli import options
from edbatch.cli.console import print_fields, print_json, say
from edbatch.cli.one_sentence import CommandError, cache_folder


def cache(
    clear: Annotated[
        bool, typer.Option("--clear", metavar="", help="Remove all programs.")
    ] = False,
    info: Annotated[
        bool,
        typer.Option(
            "--info", metavar="", help="Say where they are and what they take: default."
        ),
    ] = False,
    json: options.Json = False,
) -> None:
    """Show or clear the cache of compiled programs.

    Commands keep the programs that they compile in the user's cache folder, so that the
    next run need not compile them. EDBATCH_CACHE_DIR names another folder, or 'off';
    JAX_COMPILATION_CACHE_DIR, which JAX reads itself, comes first.

    Example: edbatch cache --clear
    """
    from edbatch.compilation import cache_contents, clear_compilation_cache
    from edbatch.compilation.cache import broken_link

    if clear and info:
        raise CommandError("--clear and --info are two commands; give one of them")
    folder = cache_folder()
    if folder is None:
        raise CommandError(
            "there is no cache of compiled programs, because EDBATCH_CACHE_DIR is 'off'"
            " or there is no home folder; set EDBATCH_CACHE_DIR to a folder"
        )
    if (link := broken_link(folder)) is not None:
        say(
            f"Note: no program is kept in {folder}, because {link} is a link that leads"
            " nowhere; mend the link, or set EDBATCH_CACHE_DIR to a folder"
        )
    elif os.path.exists(folder) and not (
        os.path.isdir(folder) and os.access(folder, os.W_OK)
    ):
        say(
            f"Note: no program is kept in {folder}, which is no folder that can be"
            " written; set EDBATCH_CACHE_DIR to one"
        )
    found = clear_compilation_cache(folder) if clear else cache_contents(folder)
    report = {
        "folder": str(found.folder),
        "removed" if clear else "programs": found.programs,
        "files": found.files,
        "megabytes": found.size_bytes / 1e6,
    }
    if json:
        print_json(report)
    else:
        print_fields(report.items())
