"""Records instances, or reuses existing recordings, for one state of a model."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from edbatch.arguments import list_of
from edbatch.errors import PlanError
from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.merge import are_recordings, merge, tables_of
from edbatch.graph.output_tree import align
from edbatch.graph.recorder import record
from edbatch.model_state import ModelState


def minibatch_of(instances: Any) -> list[Any]:
    """Returns the instances of a minibatch as a list.

    Args:
        instances: The argument that a user passed.

    Returns:
        The instances and recordings.

    Raises:
        PlanError: The argument is a plan, or not iterable.
    """
    if hasattr(type(instances), "instance_mask"):
        kind = type(instances).__name__
        raise PlanError(
            f"a minibatch is a list of instances but this is a {kind}; run a plan by"
            " .apply(params, plan) of the function that made it"
        )
    return list_of(PlanError, "a minibatch", instances)


def record_instances(state: ModelState, instances: Sequence[Any]) -> DataflowGraph:
    """Records a model on instances, into one graph.

    Args:
        state: The state of the parameters to record for.
        instances: Instances, none of them a recording.

    Returns:
        The dataflow graph of all of them.

    Raises:
        EdbatchError: The model does something outside cells that cannot be recorded,
            or a cell fails.
    """
    types = state.types
    assert types.model is not None, "a state's types know their model"
    return record(types.model, types, instances, state.calls)


def record_each(state: ModelState, instances: Sequence[Any]) -> list[DataflowGraph]:
    """Records instances one by one; existing recordings are reused.

    Args:
        state: The state of the parameters to record for.
        instances: Instances, recordings of one instance each, or both.

    Returns:
        A recording of each; all have the same output structure.

    Raises:
        EdbatchError: As for `record_instances`, with a note that names the instance; or
            a recording holds several instances, or outputs differ in structure.
    """
    recordings = []
    for k, each in enumerate(instances):
        try:
            recordings.append(_recorded(state, each))
        except Exception as error:
            error.add_note(f"instances are recorded one by one; this is number {k}")
            raise
    if not recordings:
        return []
    # The elements of empty lists are inferred from the lists of other recordings.
    outputs = [each.outputs for each in recordings]
    tree = align(outputs, state.types.avals)[0].tree
    tree = state.types.trees.setdefault(tree, tree)
    return [
        each
        if each.outputs.tree is tree
        else replace(each, outputs=each.outputs.widen(tree))
        for each in recordings
    ]


def _recorded(state: ModelState, instance: Any) -> DataflowGraph:
    if not isinstance(instance, DataflowGraph):
        return record_instances(state, [instance])
    if instance.num_instances != 1:
        raise PlanError(
            "a kept recording holds one instance, so that it can go into any"
            f" minibatch, but this one holds {instance.num_instances}; record them"
            " one by one"
        )
    return state.adopt(instance)


def record_minibatch(state: ModelState, instances: Sequence[Any]) -> DataflowGraph:
    """Records a minibatch, or merges recordings.

    Args:
        state: The state of the parameters to record for.
        instances: Instances, recordings, or both.

    Returns:
        The dataflow graph of all of them.

    Raises:
        EdbatchError: As for `record_instances`; or the minibatch is empty.
    """
    check_not_empty(instances)
    if are_recordings(instances) and tables_of(instances) == [state.types]:
        return merge(instances)
    kept = [isinstance(each, DataflowGraph) for each in instances]
    if not any(kept):
        return record_instances(state, instances)
    return merge(
        [
            state.adopt(each) if known else record_instances(state, [each])
            for each, known in zip(instances, kept, strict=True)
        ]
    )


def check_not_empty(instances: Sequence[Any]) -> None:
    """Raises `PlanError` for a minibatch without instances."""
    if not instances:
        raise PlanError(
            "a minibatch needs at least one instance but is empty; leave empty"
            " minibatches out"
        )
