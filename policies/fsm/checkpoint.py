"""Checkpoints, from which an interrupted training resumes with the same result.

A checkpoint is an ``.npz`` archive of the arrays of a `TrainingState`, with JSON for
the rest. It belongs to one training: it contains the settings and a digest of the
minibatches, which are compared before it is used.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from edbatch.errors import PolicyError, shown
from edbatch.graph.structure import GraphStructure
from edbatch.limits import check_archive, parse_json
from edbatch.policies.cost.model import CostModel
from edbatch.policies.files.whole_file import write_whole
from edbatch.policies.fsm.evaluator import EvalResult
from edbatch.policies.fsm.machine_state import MachineState
from edbatch.policies.fsm.q_learning import QTable
from edbatch.policies.fsm.state_index import NO_STATE
from edbatch.policies.fsm.training_record import is_number
from edbatch.policies.fsm.trie import Trie
from edbatch.policies.fsm.tuning import Tuning
from edbatch.policies.smooth_bound.weights import BoundWeights

# Names of settings that are digests of minibatches.
_MINIBATCHES = ("graphs", "held_out")
_OTHER_COSTS = (
    "training resumes with the costs that it began with but others are given now, or"
    " only one of the two has any; give the same, or start again without --resume"
)


@dataclass
class TrainingState:
    """The state of a training.

    Attributes:
        table: The values learned so far.
        stream: State of the random numbers of the exploration.
        tuning: The weights of the smoothed bound, if they are tuned.
        trial: Trials that have been run.
        best: The best result so far.
        curve: Trial and held-out batches of each evaluation.
        elapsed_s: Seconds of training until the last checkpoint; 0 without checkpoints.
    """

    table: QTable
    stream: np.ndarray
    tuning: Tuning | None
    trial: int = 0
    best: EvalResult | None = None
    curve: list[tuple[int, float]] = field(default_factory=list)
    elapsed_s: float = 0.0


def digest(structures: Sequence[GraphStructure]) -> str:
    """Returns a SHA-256 digest of minibatches, as text."""
    found = hashlib.sha256()
    for each in structures:
        found.update(repr(each.type_keys).encode())
        for array in (
            each.node_type,
            each.operand_start,
            each.operand_node,
            each.instance_nodes,
        ):
            # The length separates an array from the next.
            found.update(f"/{len(array)}/".encode())
            found.update(array.astype(np.int64).tobytes())
    return found.hexdigest()


def save_checkpoint(
    path: str | PathLike[str], state: TrainingState, settings: dict[str, Any]
) -> None:
    """Writes a checkpoint atomically: readers see the old file or the new one.

    Args:
        path: The file; replaced if it exists.
        state: The state to save.
        settings: JSON values that have to match when it is loaded.

    Raises:
        PolicyError: The file cannot be written.
    """
    path = Path(path)
    table, trie = state.table, state.table.trie
    arrays: dict[str, Any] = {
        "child": trie.child,
        "number": trie.number,
        "used": trie.used,
        "value": table.value,
        "visits": table.visits,
        "stream": state.stream,
    }
    rest: dict[str, Any] = {
        "settings": settings,
        "trial": state.trial,
        "curve": state.curve,
        "elapsed_s": state.elapsed_s,
        "best": None if state.best is None else _result_to_json(state.best),
        "tuning": None,
    }
    if state.tuning is not None:
        tuning = state.tuning
        arrays |= {"mean": tuning.mean, "spread": tuning.spread, "tuned": tuning.best}
        rest["tuning"] = [tuning.generation, tuning.best_batches]
    arrays["rest"] = np.array(json.dumps(rest))

    def write(temporary: Path) -> None:
        with open(temporary, "xb") as file:  # savez would append a suffix to a name
            np.savez(file, **arrays)

    try:
        write_whole(path, write)
    except OSError as error:
        raise PolicyError(
            f"a checkpoint is saved next to the policy but {path} cannot be written"
            f" ({error.strerror}); name a file in an existing, writable folder"
        ) from error


def load_checkpoint(
    path: str | PathLike[str], settings: dict[str, Any], num_types: int
) -> TrainingState:
    """Reads a checkpoint.

    Args:
        path: The file.
        settings: JSON values that have to match those that it was saved with.
        num_types: Number of types of the model.

    Returns:
        The saved state.

    Raises:
        PolicyError: There is no such file, it is damaged, or it belongs to a training
            with other settings or on other minibatches.
    """
    path = Path(path)
    state, theirs = _read(path)
    _check_settings(theirs, settings)
    try:
        _check_model(state, settings["trials"], num_types)
    except ValueError as error:
        raise _damaged(path, error) from None
    return state


def check_checkpoint(
    path: str | PathLike[str],
    settings: dict[str, Any],
    costs: CostModel | None = None,
) -> None:
    """Checks a checkpoint before the minibatches needed to load it are available.

    Args:
        path: The file.
        settings: As for `load_checkpoint`; missing settings are not compared.
        costs: Measured costs, if the training uses costs. The types of the model are
            not known yet, so the saved costs only have to be among these.

    Raises:
        PolicyError: As for `load_checkpoint`.
    """
    _, theirs = _read(Path(path))
    _check_settings(theirs, settings)
    began = theirs.get("costs")
    if began is None and costs is None:
        return
    known = [] if costs is None else costs.batch_weights(costs.types).tolist()
    if not known or not isinstance(began, list) or any(x not in known for x in began):
        raise PolicyError(_OTHER_COSTS)


def _read(path: Path) -> tuple[TrainingState, dict[str, Any]]:
    """Reads the state, and the settings that it was saved with."""
    try:
        if path.exists():
            check_archive(path)
        # NumPy would leave the file open if it is not an archive.
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        rest = parse_json(str(arrays["rest"]))
        theirs = dict(rest["settings"])
        state = _state(arrays, rest)
        _check(state)
    except FileNotFoundError:
        raise PolicyError(
            f"training resumes from a checkpoint but there is no file {path}; an"
            " interrupted training with the same --out leaves one, start it without"
            " --resume"
        ) from None
    except Exception as error:  # a damaged archive may raise almost anything
        raise _damaged(path, error) from None
    return state, theirs


def _check_settings(theirs: dict[str, Any], settings: dict[str, Any]) -> None:
    for name, value in settings.items():
        if theirs.get(name) == value:
            continue
        if name == "costs":
            raise PolicyError(_OTHER_COSTS)
        if name in _MINIBATCHES:
            raise PolicyError(
                "training resumes on the minibatches that it began with but those in"
                f" {name!r} have changed; sample or record the same ones, or start"
                " again without --resume"
            )
        raise PolicyError(
            f"training resumes with the settings that it began with but {name!r} is"
            f" {value!r} now and was {shown(theirs.get(name))}; give the same, or start"
            " again without --resume"
        )


def _damaged(path: Path, error: Exception) -> PolicyError:
    return PolicyError(
        f"training resumes from a checkpoint but {path} is not one, or damaged"
        f" ({_short(error)}); start again without --resume"
    )


def _state(arrays: dict[str, np.ndarray], rest: dict[str, Any]) -> TrainingState:
    tuning = None
    if rest["tuning"] is not None:
        generation, batches = rest["tuning"]
        tuning = Tuning(
            generation, arrays["mean"], arrays["spread"], arrays["tuned"], batches
        )
    trie = Trie(arrays["child"], arrays["number"], arrays["used"])
    best = rest["best"]
    return TrainingState(
        table=QTable(trie, arrays["value"], arrays["visits"]),
        stream=arrays["stream"],
        tuning=tuning,
        trial=rest["trial"],
        best=None if best is None else _result_from_json(best),
        curve=[(trial, batches) for trial, batches in rest["curve"]],
        elapsed_s=rest["elapsed_s"],
    )


def _check(state: TrainingState) -> None:
    """Checks arrays that compiled code reads; raises `ValueError`."""
    trie, value, visits = state.table.trie, state.table.value, state.table.visits
    capacity, num_types = trie.child.shape
    nodes, sequences = trie.used.tolist()
    expected: list[tuple[str, np.ndarray, Any, tuple[int, ...]]] = [
        ("child", trie.child, np.int32, (capacity, num_types)),
        ("number", trie.number, np.int32, (capacity,)),
        ("used", trie.used, np.int64, (2,)),
        ("value", value, np.float64, (len(value), num_types)),
        ("visits", visits, np.int64, value.shape),
        ("stream", state.stream, np.uint64, (1,)),
    ]
    if state.tuning is not None:
        tuning = state.tuning
        for name in ("mean", "spread", "best"):
            array = getattr(tuning, name)
            expected.append((name, array, np.float64, (num_types + 1,)))
    for name, array, dtype, shape in expected:
        if array.dtype != dtype or array.shape != shape:
            raise ValueError(f"{name!r} is {array.dtype}{list(array.shape)}")
    within = (
        0 < nodes <= capacity
        and 0 <= sequences <= len(value)
        and _all_in(trie.child[:nodes], 0, nodes)
        and _all_in(trie.number[:nodes], NO_STATE, sequences)
    )
    if not within:
        raise ValueError("its table of states has indices out of range")
    numbers = (type(state.trial) is int, is_number(state.elapsed_s))
    if not (all(numbers) and all(is_number(each) for p in state.curve for each in p)):
        raise ValueError("'trial', 'elapsed_s' or 'curve' are no numbers")


def _check_model(state: TrainingState, trials: int, num_types: int) -> None:
    """Checks that a state belongs to a training of the model; raises `ValueError`."""
    theirs = state.table.trie.child.shape[1]
    if theirs != num_types:
        raise ValueError(
            f"its table is for {theirs} types and the model has {num_types}"
        )
    if not 0 <= state.trial <= trials:
        raise ValueError("'trial' is out of range")
    tuning, best = state.tuning, state.best
    if tuning is not None and not (
        type(tuning.generation) is int
        and tuning.generation >= 0
        and is_number(tuning.best_batches)
        and all(np.isfinite(each).all() for each in (tuning.mean, tuning.spread))
        and np.isfinite(tuning.best).all()
    ):
        raise ValueError("'tuning' is out of range")
    if best is not None and not _is_result(best, num_types):
        raise ValueError("'best' does not fit the types of the model")


def _is_result(result: EvalResult, num_types: int) -> bool:
    kinds: tuple[tuple[Any, type], ...] = (
        (result.unseen, int),
        (result.trial, int),
        (result.meets_bounds, bool),
        (result.weights.power, int),
    )
    return (
        is_number(result.batches)
        and all(type(value) is kind for value, kind in kinds)
        and len(result.weights.types) in (0, num_types)
        and all(
            all(
                type(symbol) is int and 0 <= symbol < num_types
                for symbol in (*each.frontier, each.action)
            )
            and type(each.visits) is int
            and is_number(each.value)
            for each in result.states
        )
    )


def _all_in(array: np.ndarray, least: int, end: int) -> bool:
    return bool(((array >= least) & (array < end)).all())


def _short(error: Exception) -> str:
    text = str(error)
    return text if len(text) <= 100 else f"{text[:97]}..."


def _result_to_json(result: EvalResult) -> dict[str, Any]:
    weights = result.weights
    return {
        "batches": result.batches,
        "unseen": result.unseen,
        "trial": result.trial,
        "meets_bounds": result.meets_bounds,
        "states": [
            [each.frontier, each.action, each.visits, each.value]
            for each in result.states
        ],
        "weights": [weights.types, weights.path, weights.power],
    }


def _result_from_json(values: dict[str, Any]) -> EvalResult:
    types, path, power = values.pop("weights")
    states = values.pop("states")
    return EvalResult(
        **values,
        states=tuple(
            MachineState(tuple(frontier), *others) for frontier, *others in states
        ),
        weights=BoundWeights(tuple(types), path, power),
    )
