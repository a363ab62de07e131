"""An `Explanation` as text of 80 columns, and as tables of `rich`."""

import io
from typing import Any

from edbatch.explain.table import Table, summary, tables
from edbatch.explain.uses import MinibatchUse

_WIDTH = 80
_FEW = 5  # tables with more columns contain numbers, others text


def as_text(report: MinibatchUse) -> str:
    """Returns a report as text.

    Args:
        report: The report.

    Returns:
        Lines of up to 80 characters.
    """
    from rich.console import Console

    console = Console(
        file=io.StringIO(), width=_WIDTH, color_system=None, highlight=False
    )
    console.print(as_rich(report))
    shown: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in shown.splitlines())


def as_rich(report: MinibatchUse) -> Any:
    """Returns a report for `rich.print`.

    Args:
        report: The report.

    Returns:
        A group of tables.
    """
    from rich.console import Group
    from rich.text import Text

    parts: list[Any] = [Text(summary(report))]
    for table in tables(report):
        parts += [Text(f"\n{table.title}", style="bold"), _rich_table(table)]
    return Group(*parts)


def _rich_table(table: Table) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    is_numbers = len(table.heads) > _FEW
    for k, head in enumerate(table.heads):
        if is_numbers and k:
            shown.add_column(Text(head), justify="right", no_wrap=True)
        else:
            shown.add_column(Text(head), overflow="fold")
    for row in table.rows:
        shown.add_row(*map(Text, row))
    return shown
