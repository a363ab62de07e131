"""`edbatch workloads`."""

from edbatch.cli import options
from edbatch.cli.console import print_json, print_table


def workloads(json: options.Json = False) -> None:
    """List the ready workloads, with their descriptions and the files that they read.

    Example: edbatch workloads --json
    """
    from edbatch.models import WORKLOADS, get_workload

    found = [get_workload(name) for name in WORKLOADS]
    rows = [(each.name, each.description, each.reads) for each in found]
    columns = ("workload", "description", "reads")
    if json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        print_table(columns, rows)
