"""Do the tests find faults? Breaks the library on purpose, one mutation at a time.

Each mutation replaces one piece of text, which must occur exactly once, in a copy of
the packages. Then the tests that should find it run against the copy, and the first
test that fails is printed. With `--rest`, all tests run for a mutation that none of
these finds. In a clone:

    python experiments/mutation_check.py
    python experiments/mutation_check.py --names dropped-head,stale-plan --rest

Takes about ten minutes on two cores if the tests have run before, so that Numba has
compiled the kernels. A test checks that all the texts still occur.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from arguments import option, parse_arguments

ROOT = Path(__file__).resolve().parents[1]
# Folders of packages, and the place of each in the copy.
PACKAGES = {
    "edbatch": "edbatch",
    "envs": "edbatch/envs",
    "memory_planner": "edbatch/memory_planner",
    "policies": "edbatch/policies",
}
NOT_SURVIVED = "a test that the process did not survive"


@dataclass(frozen=True)
class Arguments:
    names: str = option("", "Which mutations, by commas; all if empty.")
    rest: bool = option(False, "Run all tests where the first ones find nothing.")
    jobs: int = option(2, "How many to try at a time.")


@dataclass(frozen=True)
class Mutation:
    """A change of the source that the tests should find.

    Attributes:
        name: The name, for the output and ``--names``.
        path: The file, relative to the repository.
        old: The text to replace, which occurs once in the file.
        new: The text to replace it with.
        tests: Files and folders of the tests to run first, separated by spaces.
        compiled: Whether Numba compiles kernels in these tests. In tests of small
            kernels, running them in Python is faster than compiling them again.
    """

    name: str
    path: str
    old: str
    new: str
    tests: str
    compiled: bool = True

    def apply(self, text: str) -> str:
        """Returns the file's text with the mutation."""
        if text.count(self.old) != 1:
            found = text.count(self.old)
            sys.exit(f"{self.name}: its text occurs {found} times in {self.path}")
        return text.replace(self.old, self.new)


def kernel(name: str, path: str, old: str, new: str, tests: str) -> Mutation:
    """Makes a mutation of a Numba kernel whose tests run kernels in Python."""
    return Mutation(name, path, old, new, tests, compiled=False)


HEURISTICS = (
    "tests/schedule/test_sufficient_condition.py tests/policies/test_heuristics.py"
)
PQ_TREE = (
    "tests/memory_planner/test_pq_tree.py tests/memory_planner/test_pq_reduction.py"
)

MUTATIONS = (
    # --- graphs and schedules
    kernel(
        "unshifted-operands",
        "edbatch/graph/flat_graph.py",
        "value += first_value\n",
        "value += 0\n",
        "tests/graph/test_recording.py",
    ),
    Mutation(
        "unshifted-inputs",
        "edbatch/graph/flat_graph.py",
        "shifted = own + first_row[slot_kind[slot]] if own >= 0 else own",
        "shifted = own + first_row[0] if own >= 0 else own",
        "tests/graph/test_external_inputs.py",
    ),
    kernel(
        "early-reader",
        "edbatch/schedule/frontier.py",
        "if state.missing[reader] == 0:",
        "if state.missing[reader] <= 1:",
        HEURISTICS,
    ),
    kernel(
        "dropped-head",
        "edbatch/schedule/sufficient_condition.py",
        "heads.heads[chosen] += 1\n                    else:",
        "heads.heads[chosen] += 0\n                    else:",
        HEURISTICS,
    ),
    kernel(
        "last-of-equal-ratios",
        "edbatch/schedule/sufficient_condition.py",
        "if value > best_value:",
        "if value >= best_value:",
        HEURISTICS,
    ),
    kernel(
        "shorter-chain",
        "edbatch/schedule/lower_bound.py",
        "best = max(best, chain[operand_node[e]])",
        "best = chain[operand_node[e]]",
        "tests/schedule/test_lower_bound.py",
    ),
    kernel(
        "last-of-equal-depths",
        "policies/heuristics.py",
        "mean[t] < best_mean",
        "mean[t] <= best_mean",
        "tests/policies/test_heuristics.py",
    ),
    # --- policies
    kernel(
        "stale-mean",
        "policies/heuristics.py",
        "depth_sum[best] -= depth[state.queue[place]]",
        "depth_sum[best] -= 0",
        "tests/policies/test_heuristics.py",
    ),
    kernel(
        "prefix-as-sequence",
        "policies/fsm/trie.py",
        "if trie.number[node] == NO_STATE:",
        "if trie.number[node] <= NO_STATE + 1:",
        "tests/policies/fsm/test_trie.py",
    ),
    Mutation(
        "one-step-late",
        "policies/fsm/q_learning.py",
        "end = steps if n_step >= steps - s else s + n_step",
        "end = steps if n_step >= steps - s else s + n_step + 1",
        "tests/policies/fsm/test_q_learning.py",
    ),
    kernel(
        "below-without-oneself",
        "policies/smooth_bound/remaining.py",
        "best += 1\n                below[v] = best",
        "below[v] = best + 1",
        "tests/policies/smooth_bound/test_remaining_bound.py",
    ),
    Mutation(
        "unguarded",
        "policies/guard.py",
        "if cost < least:",
        "if cost < least - 1:",
        "tests/policies/test_guard.py",
    ),
    Mutation(
        "ignored-visits",
        "policies/fsm/machine_state.py",
        'visits = read_entry(values, where, "visits", int)',
        'read_entry(values, where, "visits", int); visits = 0',
        "tests/policies/files",
    ),
    Mutation(
        "ignored-weights",
        "policies/files/policy_file.py",
        'BoundWeights.from_json(content.get("soft_bound"), [*position])',
        "BoundWeights.from_json(EQUAL_WEIGHTS.to_json([]), [*position])",
        "tests/policies/files tests/policies/test_zoo.py",
    ),
    # --- memory planning
    Mutation(
        "unturned-chain",
        "memory_planner/pq_templates.py",
        "if not is_full and (node[v, FULL_COUNT] > 0 or first != partial):",
        "if is_full and (node[v, FULL_COUNT] > 0 or first != partial):",
        PQ_TREE,
    ),
    Mutation(
        "wrong-end",
        "memory_planner/pq_templates.py",
        "add_to_chain(node, chain, FIRST, chain_2)",
        "add_to_chain(node, chain, LAST, chain_2)",
        PQ_TREE,
    ),
    kernel(
        "freed-too-early",
        "memory_planner/reuse.py",
        "last_read[value] = num_batches if is_output[value] else b",
        "last_read[value] = b",
        "tests/memory_planner/test_reuse.py",
    ),
    kernel(
        "widest-gap",
        "memory_planner/gaps.py",
        "gap[k, _ROWS] < gap[best, _ROWS]",
        "gap[k, _ROWS] > gap[best, _ROWS]",
        "tests/memory_planner/test_reuse.py",
    ),
    kernel(
        "overlapping-blocks",
        "memory_planner/rows.py",
        "at += batch_start[b + 1] - batch_start[b]",
        "at += batch_start[b + 1] - batch_start[b] - 1",
        "tests/memory_planner/test_layout.py",
    ),
    # --- streams
    Mutation(
        "small-bucket",
        "edbatch/stream/buckets.py",
        "self.sizes.get(name, -1) >= size",
        "self.sizes.get(name, -1) >= size - 1",
        "tests/stream/test_buckets.py",
    ),
    Mutation(
        "missing-loops",
        "edbatch/stream/buckets.py",
        "largest = min(widths.index(loop.width) + 1, len(widths) - 1)",
        "largest = widths.index(loop.width)",
        "tests/stream/test_buckets.py",
    ),
    kernel(
        "shifted-pool",
        "edbatch/stream/encode.py",
        "row = external_rows[external_start[v] + slot] + 1",
        "row = external_rows[external_start[v] + slot]",
        "tests/stream/test_format.py",
    ),
    kernel(
        "padding-of-first",
        "edbatch/stream/encode.py",
        "stream[fields[field]] = size",
        "stream[fields[field]] = size + 1",
        "tests/stream/test_format.py",
    ),
    Mutation(
        "stale-plan",
        "edbatch/plan/cache.py",
        "        graph.external_rows,\n",
        "",
        "tests/test_batching.py",
    ),
    # --- the executor, cells, and gradients
    Mutation(
        "no-fence",
        "edbatch/executor/chunk.py",
        "outputs = fence(outputs, chunk.output_rows[0], chunk.target)",
        "pass",
        "tests/executor/test_program.py",
    ),
    Mutation(
        "mask-inverted",
        "edbatch/executor/chunk.py",
        "masks.append(rows.stacked(slots) != ZERO_ROW)",
        "masks.append(rows.stacked(slots) > ZERO_ROW + 1)",
        "tests/executor/test_masks.py",
    ),
    Mutation(
        "padding-is-real",
        "edbatch/executor/chunk.py",
        "jnp.arange(self.width, dtype=jnp.int32) < self.size",
        "jnp.arange(self.width, dtype=jnp.int32) <= self.size",
        "tests/gradient/test_gradient_rules.py",
    ),
    Mutation(
        "skipped-group",
        "edbatch/executor/loops.py",
        "busy = (trips[first:last].max() > 0).astype(jnp.int32)",
        "busy = (trips[first : last - 1].max() > 0).astype(jnp.int32)",
        "tests/executor",
    ),
    Mutation(
        "lost-cotangent",
        "edbatch/cell/rows.py",
        "write_rows(arena, rows, more + slice_rows(arena, rows, len(more)))",
        "write_rows(arena, rows, more)",
        "tests/gradient tests/test_batch_parameters.py",
    ),
    Mutation(
        "set-not-added",
        "edbatch/cell/rows.py",
        "    return array + more\n",
        "    return more\n",
        "tests/gradient/test_gradient_rules.py",
    ),
    Mutation(
        "repeated-input",
        "edbatch/executor/chunk.py",
        "real, last = chunk.is_real(1), chunk.size - 1",
        "real, last = chunk.is_real(1) | True, chunk.size - 1",
        "tests/executor/test_while_loops.py",
    ),
    Mutation(
        "sign-of-a-term",
        "edbatch/cell/sums.py",
        "mine.append((products[atom], sign))",
        "mine.append((products[atom], 1))",
        "tests/cell/test_pack_cell.py tests/cell/test_random_cells.py",
    ),
    Mutation(
        "early-operand",
        "edbatch/cell/binding_time.py",
        "time = BindingTime.OPERAND if effects_of(node) else own",
        "time = own",
        "tests/cell/test_binding_time.py tests/cell",
    ),
    kernel(
        "ahead-of-another",
        "edbatch/schedule/hoist.py",
        "all_operands[at] = first_value[v] + k",
        "all_operands[at] = first_value[v]",
        "tests/cell/test_hoisting.py",
    ),
    # --- random numbers, loaders, several devices
    Mutation(
        "swapped-key",
        "edbatch/graph/node_keys.py",
        "jax.random.fold_in(jax.random.fold_in(rng, instance), call)",
        "jax.random.fold_in(jax.random.fold_in(rng, call), call)",
        "tests/graph/test_node_keys.py tests/plan/test_random_numbers.py",
    ),
    Mutation(
        "same-epoch",
        "edbatch/loader/order.py",
        "np.random.default_rng([seed, epoch])",
        "np.random.default_rng([seed, 0])",
        "tests/loader/test_order.py",
    ),
    Mutation(
        "unbalanced",
        "edbatch/sharding/balance.py",
        'np.argsort(-work, kind="stable")',
        'np.argsort(work, kind="stable")',
        "tests/sharding/test_balance.py",
    ),
)


def copy_packages(into: Path) -> None:
    """Copies the packages, including Numba's cache of compiled kernels."""
    for folder, target in PACKAGES.items():
        shutil.copytree(ROOT / folder, into / target)


def run_tests(
    packages: Path, tests: Iterable[str], compiled: bool, *options: str
) -> list[str]:
    """Runs tests against the copy; returns the names of those that fail.

    If a signal ends the process, the result is `NOT_SURVIVED` only.
    """
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-n", "0", *options]
    command += ["-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]
    command += ["--rootdir", str(ROOT)]
    more = {} if compiled else {"NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        [*command, *(str(ROOT / each) for each in tests)],
        env=os.environ | {"PYTHONPATH": str(packages)} | more,
        cwd=packages,
        capture_output=True,
        text=True,
    )
    if done.returncode == 0:
        return []
    lines = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if done.returncode < 0:
        return [NOT_SURVIVED]
    if not lines:
        sys.exit(f"pytest failed\n{done.stdout}{done.stderr}")
    return [_from_root(packages, each) for each in lines]


def _from_root(packages: Path, name: str) -> str:
    """Converts the path in a test's name: relative to `ROOT`, not to the copy."""
    path, colons, test = name.partition("::")
    return os.path.relpath(packages.resolve() / path, ROOT) + colons + test


def try_mutation(mutation: Mutation, rest: bool) -> str | None:
    """Prints and returns the first test that finds a mutation, or None."""
    with tempfile.TemporaryDirectory() as folder:
        packages = Path(folder)
        copy_packages(packages)
        top, _, inner = mutation.path.partition("/")
        file = packages / PACKAGES[top] / inner
        file.write_text(mutation.apply(file.read_text()))
        found = run_tests(packages, mutation.tests.split(), mutation.compiled, "-x")
        if not found and rest:
            found = run_tests(packages, ["tests"], mutation.compiled, "-x")
    print(f"{mutation.name:24} {found[0] if found else 'NOT FOUND'}", flush=True)
    return found[0] if found else None


def fail_unbroken(found: dict[Mutation, str]) -> list[str]:
    """Returns the tests that also fail without a mutation, and so find nothing."""
    failing = []
    for compiled in (True, False):
        tests = dict.fromkeys(
            test
            for mutation, names in found.items()
            if mutation.compiled == compiled
            for test in (mutation.tests.split() if names == NOT_SURVIVED else [names])
        )
        if tests:
            with tempfile.TemporaryDirectory() as folder:
                copy_packages(Path(folder))
                failing += run_tests(Path(folder), tests, compiled)
    return failing


def main(arguments: Arguments) -> None:
    names = {each for each in arguments.names.split(",") if each}
    chosen = [each for each in MUTATIONS if not names or each.name in names]
    if unknown := names - {each.name for each in MUTATIONS}:
        sys.exit(f"There is no mutation {', '.join(sorted(unknown))}")
    with ThreadPoolExecutor(arguments.jobs) as pool:
        tried = pool.map(partial(try_mutation, rest=arguments.rest), chosen)
        found = {
            mutation: name
            for mutation, name in zip(chosen, tried, strict=True)
            if name is not None
        }
    if failing := fail_unbroken(found):
        sys.exit(f"These fail without a mutation: {', '.join(failing)}")
    print(f"{len(found)} of {len(chosen)} found")


if __name__ == "__main__":
    main(parse_arguments(Arguments, __doc__))
