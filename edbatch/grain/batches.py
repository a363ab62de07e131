"""Two functions for a pipeline of Grain: one records a batch, the other plans it.

Grain calls the first in threads or processes, in any order. So it records with its own
table of types, and its recordings contain the definitions of their types
(`edbatch.graph.portable_graph`). The second is called in the order of the batches and
numbers types in that order, so plans do not depend on which process recorded.
"""

import inspect
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax

from edbatch.arguments import check_number, list_of
from edbatch.batched_function import BatchedFunction
from edbatch.compilation.signature import name_of
from edbatch.errors import LoaderError, PickleError, PlanError, shown
from edbatch.graph.parameter_digest import parameter_digest
from edbatch.graph.parameter_structure import check_params
from edbatch.graph.portable_graph import GraphPacker, GraphUnpacker, PackedGraph
from edbatch.graph.reference import full_name
from edbatch.graph.type_table import TypeTable, x64_enabled
from edbatch.loader.fresh import InstanceRecorder
from edbatch.loader.worker import SETTINGS
from edbatch.plan.padding import first_rows


class RecordedBatch:
    """A batch between `RecordBatch` and `PlanBatch`: a leaf for Grain, and picklable.

    Attributes:
        graphs: One recording of all instances, or one of each.
        instances: Number of instances.
        pad_to: Rows of the result; None for as many as instances.
        rest: The result of `RecordBatch`'s function `rest`; None without one.
        model: The model; None after the batch was sent to another process.
        model_name: Its name.
        params_spec: The structure of the parameters that it was recorded for; None
            after it was sent to another process, because its leaves that are not arrays
            need not be picklable.
        params_digest: A hash of that structure, the same in all processes.
        compute_dtype: The dtype in which cells compute, if it was given.

    Example:
        >>> import jax
        >>> import numpy as np
        >>> import edbatch as eb
        >>> from edbatch.models import get_workload
        >>> workload = get_workload("tree-lstm", vocabulary_size=10)
        >>> params = workload.init_params(jax.random.key(0), 8)
        >>> trees = workload.sample(np.random.default_rng(0), 2)
        >>> batched = eb.batch(workload.model, params=params)
        >>> batch = eb.grain.RecordBatch(batched, 4)(trees)
        >>> batch.instances, batch.pad_to
        (2, 4)
    """

    def __init__(
        self,
        graphs: list[PackedGraph],
        instances: int,
        pad_to: int | None,
        rest: Any,
        model: Callable[..., Any],
        params_spec: Any,
        params_digest: str,
        compute_dtype: Any,
    ) -> None:
        self.graphs = graphs
        self.instances = instances
        self.pad_to = pad_to
        self.rest = rest
        self.model: Callable[..., Any] | None = model
        self.model_name = full_name(model)
        self.params_spec, self.params_digest = params_spec, params_digest
        self.compute_dtype = compute_dtype

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the model, which may be large, and the structure of parameters."""
        return vars(self) | {"model": None, "params_spec": None}

    def __repr__(self) -> str:
        """Returns a one-line summary."""
        return f"<RecordedBatch of {self.instances} instances>"


class PlannedBatch:
    """A batch that is ready to run.

    Attributes:
        plan: Its plan, for ``batched.apply``.
        instances: Number of instances, B; its result may have more rows.
        rest: The result of `RecordBatch`'s function `rest`; None without one.

    Example:
        >>> import jax
        >>> import numpy as np
        >>> import edbatch as eb
        >>> from edbatch.models import get_workload
        >>> workload = get_workload("tree-lstm", vocabulary_size=10)
        >>> params = workload.init_params(jax.random.key(0), 8)
        >>> trees = workload.sample(np.random.default_rng(0), 2)
        >>> batched = eb.batch(workload.model, params=params)
        >>> batch = eb.grain.PlanBatch(batched)(eb.grain.RecordBatch(batched, 4)(trees))
        >>> batch.instances, batch.mask.tolist()
        (2, [True, True, False, False])
    """

    def __init__(self, plan: Any, instances: int, rest: Any) -> None:
        self.plan = plan
        self.instances = instances
        self.rest = rest

    def __repr__(self) -> str:
        """Returns a one-line summary."""
        return f"<PlannedBatch of {self.instances} instances>"

    @property
    def mask(self) -> Any:
        """True for instances, False for padding rows; ``[N] bool``."""
        return self.plan.instance_mask

    def drop_padding(self, result: Any) -> Any:
        """Removes the padding rows of a result, like `edbatch.Minibatch.drop_padding`.

        Args:
            result: Arrays with a row per instance, and padding rows last.

        Returns:
            The same arrays without padding rows.
        """
        return first_rows(result, self.instances)


class RecordBatch:
    """Records a batch: the ``batch_fn`` of Grain's ``batch``.

    It is pickled together with the model for Grain's worker processes, so the model
    must be defined at the top level of a module.

    Args:
        batched: The batched function; it must know the shapes of its parameters.
        pad_to: Rows of each result, Grain's ``batch_size``, so that a last batch that
            is not full needs no program of its own; None for no padding.
        instance: Returns the instance of an element; None if elements are instances.
        rest: Computes other data, such as an array of targets, from the batch's
            elements. It gets as many elements as the result has rows; the first element
            is repeated for padding rows.

    Raises:
        LoaderError: An argument has the wrong type.
        EdbatchError: The shapes of the parameters are unknown, as for
            `edbatch.Batched.record`.

    Example:
        >>> import numpy as np
        >>> import edbatch as eb
        >>> from edbatch.models import get_workload
        >>> workload = get_workload("tree-lstm", vocabulary_size=10)
        >>> params = workload.init_params(jax.random.key(0), 8)
        >>> trees = workload.sample(np.random.default_rng(0), 3)
        >>> batched = eb.batch(workload.model, params=params)
        >>> record, plan = eb.grain.RecordBatch(batched, 4), eb.grain.PlanBatch(batched)
        >>> batch = plan(record(trees))  # Grain calls both
        >>> batched.apply(params, batch.plan)["state"].shape, batch.mask.tolist()
        ((4, 8), [True, True, True, False])
    """

    def __init__(
        self,
        batched: BatchedFunction,
        pad_to: int | None = None,
        *,
        instance: Callable[[Any], Any] | None = None,
        rest: Callable[[Sequence[Any]], Any] | None = None,
    ) -> None:
        _check_function("RecordBatch", batched)
        if pad_to is not None:
            check_number(LoaderError, "pad_to of RecordBatch", pad_to, 1, whole=True)
        for name, each in (("instance", instance), ("rest", rest)):
            if each is not None and not callable(each):
                raise LoaderError(
                    f"{name} of RecordBatch is a function but this is {shown(each)}, of"
                    f" type {type(each).__name__}; usually the function's result; pass"
                    " the function itself"
                )
        self._model = batched.model
        self._params = batched.types.params_spec
        self._digest = parameter_digest(self._params)
        self._dtype = batched.types.compute_dtype
        self._whole = batched.takes_merged
        self._settings = {name: getattr(jax.config, name) for name in SETTINGS}
        self._settings["jax_enable_x64"] = x64_enabled()
        self.pad_to, self._instance, self._rest = pad_to, instance, rest
        self._begin()

    def __repr__(self) -> str:
        """Returns a one-line summary."""
        return f"<RecordBatch for {name_of(self._model)}>"

    def _begin(self) -> None:
        """Creates the state that belongs to one process."""
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._tools: tuple[InstanceRecorder, GraphPacker] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the state that belongs to this process."""
        return {
            name: value
            for name, value in vars(self).items()
            if name not in ("_lock", "_tools")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Applies the JAX settings of the process in which it was made."""
        vars(self).update(state)
        if self._process != os.getpid():  # otherwise it is a copy in the same process
            for name, value in self._settings.items():
                jax.config.update(name, value)
        self._begin()

    def __call__(self, elements: Sequence[Any]) -> RecordedBatch:
        """Records a batch.

        Args:
            elements: Elements of a data set, at least one.

        Returns:
            The recording, for `PlanBatch`.

        Raises:
            EdbatchError: As for `edbatch.Batched.record`; a note names the element by
                its place in the batch.
        """
        elements = list_of(LoaderError, "a batch", elements, "an element")
        if not elements:
            raise LoaderError(
                "a batch needs at least one element but is empty; leave empty batches"
                " out"
            )
        read = self._instance or (lambda element: element)
        with self._lock, jax.enable_x64(self._settings["jax_enable_x64"]):
            recorder, packer = self._tools_here()
            graphs = recorder.record(
                range(len(elements)), lambda place: read(elements[place])
            )
            packed = [packer.pack(each) for each in graphs]
        rest = None
        if self._rest is not None:
            padding = max((self.pad_to or 0) - len(elements), 0)
            rest = self._rest([*elements, *elements[:1] * padding])
        made_for = self._model, self._params, self._digest, self._dtype
        return RecordedBatch(packed, len(elements), self.pad_to, rest, *made_for)

    def _tools_here(self) -> tuple[InstanceRecorder, GraphPacker]:
        if self._tools is None:
            types = TypeTable(self._params, self._model, self._dtype)
            self._tools = (
                InstanceRecorder(types, self._whole, "batch"),
                GraphPacker(types),
            )
        return self._tools


class PlanBatch:
    """Plans a batch recorded by `RecordBatch`: for Grain's ``map``, in this process.

    Use it after ``mp_prefetch``: programs, and the state that plans are made from,
    belong to the process that trains.

    Args:
        batched: The batched function that `RecordBatch` got.

    Raises:
        LoaderError: `batched` is not a batched function.

    Example:
        >>> import jax
        >>> import numpy as np
        >>> import edbatch as eb
        >>> from edbatch.models import get_workload
        >>> workload = get_workload("tree-lstm", vocabulary_size=10)
        >>> params = workload.init_params(jax.random.key(0), 8)
        >>> trees = workload.sample(np.random.default_rng(0), 2)
        >>> batched = eb.batch(workload.model, params=params)
        >>> plan_batch = eb.grain.PlanBatch(batched)
        >>> plan_batch(eb.grain.RecordBatch(batched, 4)(trees)).plan.report.nodes
        86
    """

    def __init__(self, batched: BatchedFunction) -> None:
        _check_function("PlanBatch", batched)
        self._batched = batched
        self._unpacker = GraphUnpacker(batched.types)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        """Returns a one-line summary."""
        return f"<PlanBatch for {name_of(self._batched.model)}>"

    def __call__(self, recorded: RecordedBatch) -> PlannedBatch:
        """Plans a batch.

        Args:
            recorded: The recording.

        Returns:
            The plan, with the other data of the recording.

        Raises:
            LoaderError: It is not a recorded batch, or was recorded by another model or
                for another dtype, or has more instances than rows to pad to.
            PlanError: It was recorded for parameters of another structure, other shapes
                or dtypes.
            EdbatchError: As for `edbatch.Batched.plan`.
        """
        if not isinstance(recorded, RecordedBatch):
            raise LoaderError(
                "PlanBatch takes what RecordBatch returned but this is"
                f" {shown(recorded)}, of type {type(recorded).__name__}; write"
                " .batch(n, batch_fn=eb.grain.RecordBatch(batched)) before"
            )
        self._check_model(recorded)
        count, pad_to = recorded.instances, recorded.pad_to
        if pad_to is not None and count > pad_to:
            raise LoaderError(
                f"RecordBatch pads results to {pad_to} rows but a batch has {count}"
                " instances; usually Grain's batch_size is another; give both the same"
            )
        with self._lock:
            if self._unpacker.table is not self._batched.types:  # bound to new params
                self._unpacker = GraphUnpacker(self._batched.types)
            graphs = [self._unpacker.unpack(each) for each in recorded.graphs]
        plan = self._batched.plan(graphs, pad_to=pad_to)
        return PlannedBatch(plan, count, recorded.rest)

    def _check_model(self, recorded: RecordedBatch) -> None:
        """Checks a batch's model, parameters and dtype, before its types are used."""
        own, types = self._batched.model, self._batched.types
        # In another process, or in a copy, the same model is a different object.
        may_differ = recorded.model is None or not inspect.isfunction(own)
        is_same = may_differ and recorded.model_name == full_name(own)
        if recorded.model is not own and not is_same:
            raise LoaderError(
                f"a batch was recorded by another model, {recorded.model_name}, than"
                f" the one of this PlanBatch, {full_name(own)}; give RecordBatch and"
                " PlanBatch the same batched function"
            )
        what, fix = (
            "a batch was recorded",
            "give RecordBatch and PlanBatch the same batched function, and after .bind"
            " make a new RecordBatch",
        )
        if recorded.params_spec is not None:
            check_params(types.params_spec, recorded.params_spec, what, fix)
        elif recorded.params_digest != self._digest():
            raise PlanError(
                f"{what} for parameters of another structure, other shapes or dtypes,"
                f" or others in what is no array, such as static fields; {fix}"
            )
        if recorded.compute_dtype != types.compute_dtype:
            raise LoaderError(
                f"a batch was recorded for compute_dtype={recorded.compute_dtype} but"
                f" this PlanBatch has {types.compute_dtype}; give RecordBatch and"
                " PlanBatch the same batched function"
            )

    def _digest(self) -> str:
        return self._batched.types.derived(
            (parameter_digest,),
            lambda: parameter_digest(self._batched.types.params_spec),
        )

    def __reduce__(self) -> NoReturn:
        """Raises: plans are made in the process that runs them."""
        raise PickleError(
            "PlanBatch plans in the process that trains, but this pipeline would send"
            " it to another one; write .map(eb.grain.PlanBatch(batched)) behind"
            " .mp_prefetch(...)"
        )


def _check_function(name: str, batched: Any) -> None:
    if not all(hasattr(batched, each) for each in ("types", "plan", "takes_merged")):
        raise LoaderError(
            f"{name} takes a function made by eb.batch or .sharded(), but this is"
            f" {shown(batched)}, of type {type(batched).__name__}; usually the model"
            f" itself; write eb.grain.{name}(eb.batch(model), ...)"
        )
