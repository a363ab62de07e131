"""The limit on rows of learned serving policies: check and entry in files."""

from typing import Any

from edbatch.arguments import check_number
from edbatch.errors import PolicyError
from edbatch.policies.files.json_file import SERVING, SERVING_UNLIMITED, read_entry


def check(max_rows: int | None) -> None:
    """Checks the limit of a policy.

    Raises:
        PolicyError: It is neither None nor a whole number of at least 1.
    """
    if max_rows is not None:
        name = "max_rows of a serving policy"
        check_number(PolicyError, name, max_rows, 1, whole=True)


def version(max_rows: int | None) -> int:
    """Returns the version of a policy's file; older readers would ignore a limit."""
    return SERVING_UNLIMITED if max_rows is None else SERVING.version


def entry(max_rows: int | None) -> dict[str, int]:
    """Returns the entry of a file; empty without a limit."""
    return {} if max_rows is None else {"max_rows": int(max_rows)}


def read(content: dict[str, Any]) -> int | None:
    """Reads the limit from a file's content; None if there is none.

    Raises:
        ValueError: The entry is not an integer.
    """
    if "max_rows" not in content:
        return None
    return int(read_entry(content, "the file", "max_rows", int))
