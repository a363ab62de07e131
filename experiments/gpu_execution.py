"""Counts the kernels, copies and round trips of a minibatch in a program for a GPU.

Inside a *command buffer* (a CUDA graph) the device itself decides whether a loop
continues. Outside of one the host waits for each condition, a *host round trip*, unless
it knows the number of iterations. The iterations of each loop are counted by running
the same jaxpr, equation by equation, on the CPU (`loop_counts`).
"""

from dataclasses import dataclass

from gpu_thunks import Thunk, controls

from gpu_module import Module
from loop_counts import Iterations


@dataclass
class Executed:
    """Counts of one run of a program, for one minibatch.

    Attributes:
        kernels: Kernels that run, including those of conditions.
        copies: Copies that run.
        conditions: Evaluated loop conditions and conditional indices.
        round_trips: Conditions and indices that the host waits for.
        launches: Kernels, copies and command buffers that the host launches.
    """

    kernels: int = 0
    copies: int = 0
    conditions: int = 0
    round_trips: int = 0
    launches: int = 0


def executed(module: Module, places: list[Iterations]) -> Executed:
    """Counts what a program executes.

    Args:
        module: The program.
        places: Its loops and conditionals, as returned by `loop_counts.run_counted` for
            the same function.

    Returns:
        The counts.
    """
    total = Executed()
    _execute(module, module.thunks, places, 1, False, total)
    return total


def _execute(
    module: Module,
    thunks: list[Thunk],
    places: list[Iterations],
    times: int,
    on_device: bool,
    total: Executed,
) -> None:
    own = controls(thunks)
    places = _with_made(module, own, places, times)
    pairs = dict(zip(map(id, own), _kept(own, places), strict=True))

    def visit(each: Thunk, on_device: bool) -> None:
        if each.kind == "kWhile":
            _loop(module, each, pairs[id(each)], on_device, total)
        elif each.kind == "kConditional":
            place = pairs[id(each)]
            total.conditions += place.runs
            total.round_trips += 0 if on_device else place.runs
            for part, inner, runs in zip(
                each.parts, place.inner, place.branches, strict=True
            ):
                _execute(module, part, inner, runs, on_device, total)
        elif each.kind == "kCommandBuffer":
            total.launches += times
            for inner_thunk in each.parts[0]:
                visit(inner_thunk, True)
        elif each.parts:
            for part in each.parts:
                for inner_thunk in part:
                    visit(inner_thunk, on_device)
        else:
            is_copy = each.kind in ("kCopy", "kMemset32BitValue", "kMemzero")
            total.copies += times * is_copy
            total.kernels += times * (not is_copy)
            total.launches += 0 if on_device else times

    for each in thunks:
        visit(each, on_device)


def _with_made(
    module: Module, own: list[Thunk], places: list[Iterations], times: int
) -> list[Iterations]:
    """Adds the loops of known length that XLA made from single operations.

    Since version 0.12, JAX's binary search is one operation, which becomes a loop.
    """
    places = list(places)
    for k, each in enumerate(own):
        if len(own) <= len(places):
            break
        iterations = module.iterations(each) if each.kind == "kWhile" else None
        is_other = k == len(places) or _size(each) != _size(places[k])
        if iterations is not None and is_other and not _size(each):
            made = Iterations("while", times, times * iterations, inner=[[], []])
            places.insert(k, made)
    return places


def _kept(own: list[Thunk], places: list[Iterations]) -> list[Iterations]:
    """Returns the loops that XLA kept; it removes some that iterate at most once."""
    places = list(places)
    if len(own) > len(places):
        raise ValueError(
            f"XLA has {len(own)} loops where the jaxpr has {len(places)}; it made some,"
            " and they cannot be matched"
        )
    while len(own) < len(places):

        def cost(k: int) -> tuple[int, int]:
            rest = places[:k] + places[k + 1 :]
            pairs = zip(own, rest[: len(own)], strict=True)
            wrong = sum(_size(one) != _size(other) for one, other in pairs)
            return wrong, places[k].iterations

        del places[min(range(len(places)), key=cost)]
    return places


def _size(each: Thunk | Iterations) -> int:
    """Returns the number of loops and conditionals inside."""
    if isinstance(each, Thunk):
        inner = [control for part in each.parts for control in controls(part)]
        return sum(1 + _size(one) for one in inner)
    return sum(1 + _size(one) for part in each.inner for one in part)


def _loop(
    module: Module, loop: Thunk, place: Iterations, on_device: bool, total: Executed
) -> None:
    known = module.iterations(loop) is not None
    asked = 0 if known and not on_device else place.iterations + place.runs
    total.conditions += asked
    total.round_trips += 0 if on_device else asked
    condition, body = loop.parts
    inner = place.inner if place.kind == "while" else [[], *place.inner]
    _execute(module, condition, inner[0], asked, on_device, total)
    _execute(module, body, inner[1], place.iterations, on_device, total)
