"""The tables of an `Explanation` as strings, shared by its text and HTML forms."""

from collections.abc import Sequence
from typing import NamedTuple

from edbatch.explain.uses import MinibatchUse, TypeUse


class Table(NamedTuple):
    """A table of text.

    Attributes:
        title: Title above the table.
        heads: Headings of the columns.
        rows: Cells of each row; the first cell is a name.
    """

    title: str
    heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def summary(report: MinibatchUse) -> str:
    """Summarises the minibatch in a few sentences."""
    plan, types = report.plan, len({use.type for use in report.types})
    times = (
        ""
        if report.time_us is None
        else f" Its batches take {report.time_us / 1e3:,.2f} ms ({report.time_source})."
    )
    return (
        f"{report.model}: {report.instances:,} instances, {plan.nodes:,} nodes of"
        f" {types:,} types in {plan.batches:,} batches by {plan.policy}; no schedule"
        f" has fewer than {report.lower_bound:,}. {plan.chunks:,} chunks in"
        f" {report.loops:,} loops, {short(report.flops)} FLOP in products.{times}"
    )


def types_table(report: MinibatchUse) -> Table:
    """Returns the table with a row per type, and the sums."""
    timed = report.time_us is not None
    heads = ("type", "nodes", "batches", "least", "padding", "in place", "FLOP")
    heads = (*heads, *(("µs", "time") if timed else ()))
    rows = [_type_row(use, report) for use in report.types]
    if len(rows) > 1:
        rows.append(_sums(report))
    return Table("Types", heads, rows)


def widths_table(report: MinibatchUse) -> Table:
    """Returns the table of the number of chunks by type and width."""
    rows = [
        (use.name, ", ".join(f"{n} of {w}" for w, n in use.chunks.items()))
        for use in report.types
    ]
    return Table("Chunks by width, in rows", ("type", "chunks"), rows)


def apart_table(report: MinibatchUse) -> Table | None:
    """Returns the table of types of one cell that share no batch; None if none."""
    if not report.apart:
        return None
    rows = []
    for each in report.apart:
        what = f"{each.reason} of {each.argument}" if each.argument else each.reason
        values = ", ".join(each.values)
        also = f"; also {', '.join(each.also)}" if each.also else ""
        rows.append(
            (
                each.cell,
                f"{what}: {values}{also}",
                f"{each.batches:,} → {each.batches_together:,}",
                each.fix,
            )
        )
    heads = ("cell", "types differ in", "batches", "fix")
    return Table("Types of one cell that share no batch", heads, rows)


def compiled_table(report: MinibatchUse) -> Table | None:
    """Returns the table of the model's compilations; None if there are none."""
    if not report.compilations:
        return None
    rows = [
        (each.function, each.tier, f"{each.seconds:.1f} s", str(each.runs), each.reason)
        for each in report.compilations
    ]
    heads = ("function", "tier", "took", "runs", "why")
    return Table("Compiled so far for direct calls", heads, rows)


def tables(report: MinibatchUse) -> list[Table]:
    """Returns all tables that have rows."""
    found = (
        types_table(report),
        widths_table(report),
        apart_table(report),
        compiled_table(report),
    )
    return [each for each in found if each is not None]


def _type_row(use: TypeUse, report: MinibatchUse) -> tuple[str, ...]:
    row = (
        use.name,
        f"{use.nodes:,}",
        f"{use.batches:,}",
        "-" if use.hoisted else f"{use.chain:,}",
        share(use.padding_rows, use.rows),
        share(use.in_place_bytes, use.operand_bytes),
        short(use.flops),
    )
    if report.time_us is None or use.time_us is None:
        return row
    return (*row, f"{use.time_us:,.0f}", share(use.time_us, report.time_us))


def _sums(report: MinibatchUse) -> tuple[str, ...]:
    uses: Sequence[TypeUse] = report.types
    rows, padding = (
        sum(getattr(use, name) for use in uses) for name in ("rows", "padding_rows")
    )
    read, in_place = (
        sum(getattr(use, name) for use in uses)
        for name in ("operand_bytes", "in_place_bytes")
    )
    row = (
        "all",
        f"{report.plan.nodes:,}",
        f"{report.plan.batches:,}",
        f"{report.lower_bound:,}",
        share(padding, rows),
        share(in_place, read),
        short(report.flops),
    )
    return row if report.time_us is None else (*row, f"{report.time_us:,.0f}", "100%")


def share(part: float, whole: float) -> str:
    """Formats a share in percent, or as a dash if the whole is 0.

    Example:
        >>> share(1, 3), share(0, 0)
        ('33%', '-')
    """
    return f"{part / whole:.0%}" if whole else "-"


def short(number: float) -> str:
    """Formats a large number with three digits.

    Example:
        >>> short(0), short(12_345), short(999_999), short(3_200_000_000)
        ('0', '12.3k', '1M', '3.2G')
    """
    rounded = float(f"{number:.3g}")  # rounding may reach the next unit
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if rounded >= size:
            digits = rounded / size
            return f"{digits:.3g}{unit}" if digits < 1000 else f"{digits:,.0f}{unit}"
    return f"{rounded:.3g}"
