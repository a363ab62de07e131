"""An `Explanation` as HTML, for notebooks."""

from html import escape

from edbatch.explain.table import Table, summary, tables
from edbatch.explain.uses import MinibatchUse

_FEW = 5  # tables with more columns contain numbers, others text


def as_html(report: MinibatchUse) -> str:
    """Returns a report as HTML.

    Args:
        report: The report.

    Returns:
        A ``div`` that inherits the colours and fonts of the page.
    """
    parts = [f"<p>{escape(summary(report))}</p>", *map(_html_table, tables(report))]
    return f'<div class="edbatch-explanation">{"".join(parts)}</div>'


def _html_table(table: Table) -> str:
    is_numbers = len(table.heads) > _FEW

    def cell(tag: str, k: int, content: str) -> str:
        side = "right" if is_numbers and k else "left"
        return f'<{tag} style="text-align:{side}">{escape(content)}</{tag}>'

    def row(tag: str, cells: tuple[str, ...]) -> str:
        return f"<tr>{''.join(cell(tag, k, each) for k, each in enumerate(cells))}</tr>"

    caption = '<caption style="text-align:left;font-weight:bold">'
    return (
        f"<table>{caption}{escape(table.title)}</caption>"
        f"<thead>{row('th', table.heads)}</thead>"
        f"<tbody>{''.join(row('td', each) for each in table.rows)}</tbody></table>"
    )
