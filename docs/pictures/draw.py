"""Draws the pictures of docs/concepts.md.

    python docs/pictures/draw.py

In the first two are the trees ((a b) c) and (d (e f)). Numbers and
batches come from the library; only where boxes stand is drawn by hand. SVG files
are the same for the same input.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np

import edbatch as eb
from edbatch.plot import plot_schedules
from edbatch.policies import Agenda, Depth, Greedy
from edbatch.schedule import Schedule

FOLDER = Path(__file__).parent
TREES = [(("a", "b"), "c"), ("d", ("e", "f"))]
# Fill and edge by cell, told apart in grey, too.
COLORS = {"leaf": ("#dbeafe", "#1d4ed8"), "compose": ("#fde68a", "#92400e")}
HEAD = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
    ' font-family="sans-serif" font-size="14" role="img" aria-label="{label}">\n'
    '<rect width="{width}" height="{height}" rx="8" fill="white"/>\n'
)


class Node(NamedTuple):
    """A box: which cell, what it says, and where its middle is."""

    cell: str
    text: str
    x: float
    y: float


@eb.cell
def leaf(params: np.ndarray, word: int) -> np.ndarray:
    return params[word]


@eb.cell
def compose(params: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return params[0] * (left + right)


@eb.cell
def negate(params: np.ndarray, inner: np.ndarray) -> np.ndarray:
    return params[0] - inner


def model(params: np.ndarray, tree: object) -> object:
    if isinstance(tree, str):
        return leaf(params, ord(tree) - ord("a"))
    assert isinstance(tree, tuple)
    if tree[0] == "not":
        return negate(params, model(params, tree[1]))
    return compose(params, model(params, tree[0]), model(params, tree[1]))


def random_sentence(rng: np.random.Generator, length: int) -> object:
    if rng.random() < 0.25:
        return ("not", random_sentence(rng, length))
    if length == 1:
        return "abcdef"[rng.integers(6)]
    left = int(rng.integers(1, length))
    return (random_sentence(rng, left), random_sentence(rng, length - left))


def box(node: Node) -> str:
    fill, edge = COLORS[node.cell]
    return (
        f'<rect x="{node.x - 42}" y="{node.y - 16}" width="84" height="32" rx="6"'
        f' fill="{fill}" stroke="{edge}"/>'
        f'<text x="{node.x}" y="{node.y + 5}" text-anchor="middle"'
        f' fill="#111">{node.text}</text>\n'
    )


def text(x: float, y: float, words: str, anchor: str = "start", size: int = 14) -> str:
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="{size}"'
        f' fill="#111">{words}</text>\n'
    )


def line(one: Node, other: Node) -> str:
    return (
        f'<line x1="{one.x}" y1="{one.y + 16}" x2="{other.x}" y2="{other.y - 16}"'
        ' stroke="#444"/>\n'
    )


def place(tree: object, x: float, depth: int) -> Iterator[tuple[Node, list[Node]]]:
    """Boxes of a tree, children first; each with those it reads."""
    if isinstance(tree, str):
        yield Node("leaf", f"leaf {tree}", x, 90 + 70 * depth), []
        return
    assert isinstance(tree, tuple)
    spread = 100 if depth == 0 else 55
    read = []
    for child, side in zip(tree, (-1, 1), strict=True):
        found = list(place(child, x + side * spread, depth + 1))
        yield from found
        read.append(found[-1][0])
    yield Node("compose", "compose", x, 90 + 70 * depth), read


def draw_graph() -> str:
    parts = [HEAD.format(width=760, height=280, label="Two trees as graphs of nodes")]
    for tree, x, name in zip(TREES, (220, 545), ("0", "1"), strict=True):
        words = str(tree).replace("'", "").replace(",", "")
        parts.append(text(x, 40, f"instance {name}: {words}", "middle", 16))
        for node, read in place(tree, x, 0):
            parts += [line(node, child) for child in read]
            parts.append(box(node))
    return "".join(parts) + "</svg>\n"


def draw_batches(schedule: Schedule, labels: Sequence[str]) -> str:
    """Boxes of the nodes, a column for each batch."""
    batches = np.split(schedule.order, schedule.batch_start[1:-1])
    parts = [HEAD.format(width=760, height=300, label="The nodes, batch by batch")]
    for k, batch in enumerate(batches):
        x = 130 + 240 * k
        cell = labels[int(batch[0])].split()[0]
        parts.append(text(x, 34, f"batch {k}: {len(batch)} × {cell}", "middle", 16))
        parts += [
            box(Node(cell, labels[int(node)], x, 70 + 40 * row))
            for row, node in enumerate(batch)
        ]
        if k:
            parts.append(text(x - 128, 75, "→", "middle", 24))
    return "".join(parts) + "</svg>\n"


def main() -> None:
    """Writes the pictures."""
    batched = eb.batch(model, params=np.ones((6, 4), np.float32))
    graph = batched.graph(TREES)
    words = iter("abcdef")
    names = [key.cell for key in graph.structure.type_keys]
    labels = [names[t] for t in graph.structure.node_type]
    labels = [f"leaf {next(words)}" if each == "leaf" else each for each in labels]
    (FOLDER / "graph.svg").write_text(draw_graph())
    schedule = Greedy().schedule(graph.structure)
    (FOLDER / "batches.svg").write_text(draw_batches(schedule, labels))
    matplotlib.rcParams["svg.hashsalt"] = "edbatch"
    rng = np.random.default_rng(0)
    sentences = [random_sentence(rng, 10) for _ in range(6)]
    larger = batched.graph(sentences).structure
    schedules = [each.schedule(larger) for each in (Depth(), Agenda(), Greedy())]
    figure = plot_schedules(schedules, larger)
    figure.savefig(FOLDER / "schedules.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
