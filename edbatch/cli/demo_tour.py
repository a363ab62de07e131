"""The steps of `edbatch demo`."""

import tempfile
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

import edbatch as eb
from edbatch.cli.console import stage
from edbatch.cli.minibatches import draw, record, split
from edbatch.cli.output_file import check_writable, make_folder
from edbatch.cli.rows import as_rows, comparisons
from edbatch.cli.task import Task
from edbatch.compilation.settings import fine_only
from edbatch.graph import GraphStructure
from edbatch.graph.context import jitted_apart, jitted_cells
from edbatch.measuring import timed
from edbatch.models import Workload, get_workload
from edbatch.policies import Greedy, StateMachine, compare, train_policy, warm_up
from edbatch.schedule.interrupt import deferred_interrupt

_TREES = 1000
_MINIBATCHES = 8
_SIZES = eb.Sizes()
_CHECKED_GRADIENTS = 4  # trees; their unbatched gradients are slow


@dataclass(frozen=True)
class Tour:
    """The state that the steps share.

    Attributes:
        path: The file of the policy.
        workload: The model.
        hidden: Its hidden size.
        seed: Seed of its parameters.
        trees: The generated trees.
        graphs: Graphs of minibatches: to train on, to validate on, to compare on.
        plain_graphs: Graphs of the minibatches to compare on, for a tree-LSTM with one
            composition.
        batch_size: Trees per minibatch.
    """

    path: Path
    workload: Workload
    hidden: int
    seed: int
    trees: list[Any]
    graphs: list[list[GraphStructure]]
    plain_graphs: list[GraphStructure]
    batch_size: int

    @classmethod
    def start(
        cls, folder: Path | None, hidden: int, batch_size: int, seed: int
    ) -> "Tour":
        """Generates trees, and records the model on them."""
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="edbatch-demo-"))
        path = folder / "tree-lstm-2type.json"
        make_folder("--out", folder)
        check_writable("--out", path)
        rng = np.random.default_rng(seed)
        workload = get_workload("tree-lstm-2type", vocabulary_size=1000)
        plain = get_workload("tree-lstm", vocabulary_size=1000)
        trees = workload.sample(rng, _TREES)

        def task_of(each: Workload) -> Task:
            key = jax.random.key(seed)
            shapes = jax.eval_shape(lambda: each.init_params(key, hidden))
            return Task("demo", each.model, shapes, trees)

        to_train, to_judge, held_out = split(len(trees), rng)
        groups = [
            draw(indices, batch_size, _MINIBATCHES, rng)
            for indices in (to_train, to_judge, held_out)
        ]
        graphs = record(task_of(workload), *groups)
        [plain_graphs] = record(task_of(plain), groups[-1])
        return cls(
            path, workload, hidden, seed, trees, graphs, plain_graphs, batch_size
        )

    @property
    def num_trees(self) -> int:
        """Number of generated trees."""
        return len(self.trees)

    def count_plain(self) -> dict[str, float]:
        """Counts the default policy's batches for a tree-LSTM with one composition."""
        with stage("Scheduling by greedy"):
            [greedy] = compare([Greedy()], self.plain_graphs, repeats=1)
        return {"batches": greedy.mean_batches, "lower_bound": greedy.mean_lower_bound}

    def train(self) -> StateMachine:
        """Trains a policy and saves it."""
        with stage("Compiling (the first time, Numba takes up to a minute)"):
            warm_up()
        with deferred_interrupt():
            with stage("Training"):
                policy = train_policy(
                    self.graphs[0], self.graphs[1], workload="edbatch demo"
                )
            policy.save(self.path)
        assert policy.training is not None, "train_policy keeps a record"
        if policy.training.stopped == "interrupted":
            raise KeyboardInterrupt
        return policy

    def compare(self) -> list[dict[str, Any]]:
        """Compares the saved policy with the heuristics."""
        with stage("Comparing"):
            policy = eb.load_policy(self.path)
            return as_rows(comparisons(policy, self.graphs[2]), self.batch_size)

    @cached_property
    def params(self) -> Any:
        """The parameters of the model."""
        return self.workload.init_params(jax.random.key(self.seed), self.hidden)

    @cached_property
    def _cells(self) -> dict[Any, dict[Any, Any]]:
        """The compiled cells of the unbatched model."""
        return {}

    def compile_unbatched(self) -> None:
        """Compiles the unbatched model and its gradient."""
        with jitted_apart(self._cells), jitted_cells(exact=True):
            self._sum_of_outputs(self.params)
            jax.grad(self._sum_of_outputs)(self.params)

    def _sum_of_outputs(self, params: Any) -> Any:
        """Sums the outputs of the unbatched model for one tree."""
        outputs = self.workload.model(params, self.trees[0])
        return sum(each.sum() for each in jax.tree.leaves(outputs))

    @cached_property
    def batched(self) -> eb.Batched:
        """The model with the saved policy."""
        return eb.batch(self.workload.model, self.path, sizes=_SIZES)

    @fine_only
    def run(self) -> dict[str, Any]:
        """Runs minibatches batched, and a few trees unbatched; returns throughputs."""
        batched = self.batched
        size = min(self.batch_size, self.num_trees)
        starts = range(0, self.num_trees - size + 1, size)
        chunks = [self.trees[k : k + size] for k in starts]
        with stage("Compiling"):
            first_ms = [timed(batched, self.params, each)[1] for each in chunks[:2]]
        with stage("Running"):
            compiled = chunks[2:] or chunks  # all, if there are only a few
            batched_ms = [timed(batched, self.params, each)[1] for each in compiled]
            few = self.trees[:8]
            with jitted_apart(self._cells), jitted_cells():
                unbatched_ms = [
                    timed(lambda: [self.workload.model(self.params, t) for t in few])[1]
                    for _ in range(3)
                ]
        return {
            "instances_per_s": 1e3 * size / float(np.median(batched_ms)),
            "unbatched_per_s": 1e3 * len(few) / float(np.median(unbatched_ms)),
            "compiles": batched.compiles,
            "compile_s": sum(first_ms) / 1e3,
        }

    def verify(self) -> dict[str, Any]:
        """Compares batched with unbatched results."""
        minibatch = self.trees[: self.batch_size]
        text = "Comparing with the model of one tree"
        with stage(text), jitted_apart(self._cells):
            outputs = eb.verify(self.batched, self.params, minibatch, gradients=False)
            # The fine program of the gradient would take ten seconds to compile.
            few = eb.verify(
                self.batched, self.params, minibatch[:_CHECKED_GRADIENTS], tier="coarse"
            )
        return asdict(outputs) | {"max_gradient_error": few.max_gradient_error}
