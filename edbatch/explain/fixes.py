"""Suggests changes that make types share batches."""

from collections.abc import Sequence

from edbatch.explain.facts import Aspect, Facts


def fix_of(aspect: Aspect, group: Sequence[Facts]) -> str:
    """Returns what to change so that types agree in an aspect.

    Args:
        aspect: The aspect in which they differ.
        group: The types.

    Returns:
        The change, as a clause.
    """
    name, own = aspect.argument, group[0].name
    if aspect.reason == "list length":
        return (
            f"declare the list as padded, @eb.cell(padded=({name!r},)), and give"
            f" {own!r} an argument 'mask'"
        )
    if aspect.reason == "dtype":
        return f"give {name!r} one dtype, with .astype or np.asarray(..., dtype)"
    return _FIXES[aspect.reason].format(name=name, cell=own)


_FIXES = {
    "definition": (
        "define {cell!r} once, outside the model, and pass what differs as an argument"
    ),
    "parameters": (
        "one product cannot read two matrices, so this is expected for layers; if data"
        " decides which parameters are read, stack them in one array and let the cell"
        " index it by an integer input"
    ),
    "static argument": (
        "pass {name!r} as an ordinary array, if the cell does not need it to be known"
        " when it is compiled; a choice of few becomes jnp.where or lax.switch"
    ),
    "padded length": (
        "let the lists be padded to one length, lengths=(K,) of eb.cell, where the"
        " longer product costs less than a batch"
    ),
    "structure": "call {cell!r} with one structure of {name!r}; zeros stand for None",
    "source": (
        "let a cell make what comes from outside, such as an initial state: then"
        " {name!r} is a cell's output in all calls"
    ),
    "shape": "pad {name!r} to one shape, if its padding can be masked in the cell",
}
