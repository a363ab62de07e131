"""Makes recordings of instances' paths by joining their parts of all waves."""

from collections.abc import Sequence

import numpy as np

from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.node_keys import is_key
from edbatch.graph.output_recording import OutputColumns
from edbatch.graph.tape import Tape
from edbatch.waves.instance_run import InstanceRun
from edbatch.waves.wave_nodes import RecordedNodes


def recording_of(run: InstanceRun, waves: Sequence[RecordedNodes]) -> DataflowGraph:
    """Makes a recording of an instance that has ended.

    Args:
        run: The instance.
        waves: The nodes recorded before each wave, by all instances.

    Returns:
        The recording that `edbatch.Batched.record` would have made if the model had
        known the values that it asked for.
    """
    types = run.types
    node_type = [_nothing(np.int32)]
    operands = [_nothing(np.int64)]
    rows = [_nothing(np.int32)]
    kinds = [_nothing(np.int32)]
    wave_of = [_nothing(np.int32)]
    for wave, first, last, _, _ in run.parts:
        own = waves[wave].nodes
        types_here = own.node_type[first:last]
        node_type.append(types_here)
        operands.append(
            own.operands[own.operand_start[first] : own.operand_start[last]]
        )
        begin, end = own.external_start[first], own.external_start[last]
        rows.append(own.external_rows[begin:end])
        found = [k for t in types_here.tolist() for k in types.types[t].external_kinds]
        kinds.append(np.array(found, np.int32))
        wave_of.append(np.full(end - begin, wave, np.int32))
    tape, columns = Tape(types), OutputColumns()
    run.tape = tape  # takes the external inputs among the results
    columns.add(run, run.result)
    outputs = columns.finish(types.trees)
    pools = tape.pools()
    external_rows, externals = _own_externals(
        waves,
        np.concatenate(rows),
        np.concatenate(kinds),
        np.concatenate(wave_of),
        pools,
    )
    for kind, pool in externals.items():
        if is_key(types.avals[kind].dtype):
            pool[:, 0] = 0  # the only instance of its recording
    numbers = _Numbers(run)
    return DataflowGraph(
        types=types,
        node_type=np.concatenate(node_type),
        operands=numbers.of(np.concatenate(operands)),
        external_rows=external_rows,
        externals=externals,
        outputs=outputs.renumber_values(numbers.of),
        instance_nodes=np.array([sum(map(len, node_type))], np.int32),
        num_values=numbers.count,
    )


def _nothing(dtype: type) -> np.ndarray:
    return np.zeros(0, dtype)


class _Numbers:
    """Renumbers an instance's values consecutively from 0."""

    def __init__(self, run: InstanceRun) -> None:
        self._first = np.array([part[3] for part in run.parts], np.int64)
        sizes = [part[4] - part[3] for part in run.parts]
        ends = np.cumsum(sizes, dtype=np.int64)
        self.count = int(ends[-1]) if sizes else 0
        self._shift = self._first - (ends - sizes)

    def of(self, values: np.ndarray) -> np.ndarray:
        """Returns the new numbers of values; negative numbers (missing) are kept."""
        part = np.searchsorted(self._first, values, side="right") - 1
        found = np.where(values < 0, values, values - self._shift[np.maximum(part, 0)])
        return found.astype(np.int32)


def _own_externals(
    waves: Sequence[RecordedNodes],
    rows: np.ndarray,
    kinds: np.ndarray,
    wave_of: np.ndarray,
    results: dict[int, np.ndarray],
) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """Takes the external inputs of one instance out of the pools of waves.

    External inputs among its results come first, so that their rows do not change.
    """
    externals = {}
    new_rows = rows.copy()
    for kind in sorted({*kinds.tolist(), *results}):
        own = np.flatnonzero((kinds == kind) & (rows >= 0))
        parts = [results[kind]] if kind in results else []
        count = sum(map(len, parts))
        for wave in np.unique(wave_of[own]).tolist():
            here = own[wave_of[own] == wave]
            used, inverse = np.unique(rows[here], return_inverse=True)
            parts.append(waves[wave].pools[kind][used])
            new_rows[here] = count + inverse
            count += len(used)
        if parts:
            externals[kind] = np.concatenate(parts)
    return new_rows, externals
