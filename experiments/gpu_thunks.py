"""Reads the *thunks* of a program that XLA compiled for a GPU, as a tree.

Thunks are the program's steps: kernels, copies, loops and conditionals, some of them
inside a *command buffer* (a CUDA graph).
"""

import re
from dataclasses import dataclass, field


@dataclass
class Thunk:
    """A step of a compiled program.

    Attributes:
        kind: The kind in XLA, such as ``"kWhile"``.
        name: Name of the kernel, if the thunk is a kernel.
        number: The thunk's number in the module.
        parts: Condition and body of a loop, branches of a conditional, or the content
            of another thunk, such as a command buffer; each a list of thunks.
    """

    kind: str
    name: str
    number: int
    parts: list[list["Thunk"]] = field(default_factory=list)

    @property
    def is_control(self) -> bool:
        """Whether it is a loop or a conditional."""
        return self.kind in ("kWhile", "kConditional")


_THUNK = re.compile(r"^( *)(\d+): (k\w+) +\[[^\]]*\] *(\S*)")
_PART = re.compile(r"^ *(condition|body|branch_\d+|true_branch|false_branch):$")


def read_thunks(text: str) -> list[Thunk]:
    """Reads a sequence of thunks from XLA's printed form.

    Args:
        text: The text.

    Returns:
        The outermost thunks.

    Example:
        >>> [loop] = read_thunks('''
        ... 003: kWhile [source | sink]
        ... condition:
        ...     004: kKernel [source | sink] less grid: [1, 1, 1]
        ...   body:
        ...     005: kKernel [source | sink] add grid: [1, 1, 1]
        ... ''')
        >>> loop.kind, [[each.name for each in part] for part in loop.parts]
        ('kWhile', [['less'], ['add']])
    """
    top: list[Thunk] = []
    open_: list[tuple[int, list[Thunk]]] = [(-1, top)]  # column, list to append to
    last: tuple[int, Thunk] | None = None
    owners: list[tuple[int, Thunk]] = []  # loops and conditionals, outermost first
    for line in text.splitlines():
        found, part = _THUNK.match(line), _PART.match(line)
        if part:
            column = len(line) - len(line.lstrip())
            # "condition:" follows its loop and is indented wrongly.
            if part[1] == "condition":
                assert last is not None
                owner_column, owner = last
            else:
                owner_column, owner = next(
                    each for each in reversed(owners) if each[0] < column
                )
            owner.parts.append([])
            open_ = [each for each in open_ if each[0] < owner_column + 1]
            open_.append((owner_column + 1, owner.parts[-1]))
        elif found:
            column = len(found[1])
            while open_[-1][0] > column:
                open_.pop()
            if last and column > last[0] and not last[1].is_control:
                last[1].parts.append([])
                open_.append((last[0] + 1, last[1].parts[-1]))
            thunk = Thunk(found[3], found[4], int(found[2]))
            open_[-1][1].append(thunk)
            owners = [each for each in owners if each[0] < column]
            if thunk.is_control:
                owners.append((column, thunk))
            last = column, thunk
    return top


def controls(thunks: list[Thunk]) -> list[Thunk]:
    """Returns the loops and conditionals of a sequence and of its command buffers."""
    found = []
    for each in thunks:
        if each.is_control:
            found.append(each)
        else:
            for part in each.parts:
                found += controls(part)
    return found
