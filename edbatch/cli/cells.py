"""`edbatch inspect --cell`."""

from typing import TYPE_CHECKING

from edbatch.cli.console import print_json, print_table, say, stage
from edbatch.cli.options import TaskOptions

if TYPE_CHECKING:
    from edbatch.cell import CellDescription

_SAMPLED = 64  # instances to record, to find the types of operations


def inspect_cells(
    options: TaskOptions, hidden: int | None, seed: int, *, json: bool
) -> None:
    """Prints the cells of a model before and after packing.

    Raises:
        EdbatchError: Raised by `load_task`, or a hidden size is given for the user's
            own model.
    """
    import edbatch as eb
    from edbatch.cell import describe_cells
    from edbatch.cli import user_code
    from edbatch.cli.task import load_task

    options.check_hidden(hidden)
    task = load_task(options, seed, _SAMPLED, hidden or 128)
    batched = eb.batch(task.model, params=task.params)
    with stage("Recording"), user_code.running("the model"):
        for instance in task.instances:
            batched.record(instance)
    with stage("Packing"):
        found = describe_cells(batched.types)
    if json:
        print_json([each.to_json() for each in found])
    else:
        _print(found)


def _print(found: "list[CellDescription]") -> None:
    print_table(
        ("cell", "products", "packed", "equations", "KiB packed"),
        [
            (
                each.type,
                each.before.products_text or "none",
                each.after.products_text or "none",
                f"{each.before.num_equations} to {each.after.num_equations}",
                each.after.packed_bytes / 1024,
            )
            for each in found
        ],
    )
    before, after = (
        sum(getattr(each, name).num_products for each in found)
        for name in ("before", "after")
    )
    say(f"{before} products in {len(found)} types of cells run as {after}.")
