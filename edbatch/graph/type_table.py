"""All node types of one model, in the order in which recordings met them."""

import pickle
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import jax
import numpy as np

from edbatch.errors import PickleError
from edbatch.graph import lineage
from edbatch.graph.array_kinds import ArrayKinds
from edbatch.graph.cell import Cell
from edbatch.graph.cell_outputs import OutputSpec
from edbatch.graph.input_shapes import InputShapes
from edbatch.graph.lineage import Lineage, Marks, Size
from edbatch.graph.list_lengths import ListLengths
from edbatch.graph.node_type import (
    Aval,
    CallTemplate,
    NodeType,
    TypeKey,
    parameter_names,
)
from edbatch.graph.output_traces import OutputTraces, call_identity
from edbatch.graph.output_tree import OutputTree
from edbatch.graph.parameters import ParameterPath
from edbatch.graph.reference import full_name
from edbatch.graph.static_arguments import StaticArguments
from edbatch.graph.stored_type import (
    PortableType,
    StoredType,
    moved,
    store,
    template_for,
)

Made = TypeVar("Made")

_config: Any = jax.config
_SHOWN = 4  # maximum number of types in the text of a table


class TypeTable:
    """The types, array kinds and parameter structure of one model.

    A table only grows. Graphs refer to types and to array kinds (shape and dtype) by
    their position in it; graphs of one table can be merged and share programs.

    Attributes:
        params_spec: The parameters' structure, ``jax.ShapeDtypeStruct`` leaves.
        model_name: The model's name.
        params: The stand-in that models see while they are recorded.
        types: Known types.
        kinds: Known array kinds.
        lock: Guards types and array kinds.
        trees: Known structures of outputs; equal ones are one object.
        compute_dtype: The dtype that cells compute in; None for the dtypes of their
            arguments.
        x64: Whether ``jax_enable_x64`` was on when the table was made. The dtypes of
            numbers and of cells' outputs depend on it, so its types, and everything
            that is recorded and planned with them, belong to that setting.

    Example:
        >>> import edbatch as eb
        >>> @eb.cell
        ... def double(params, x):
        ...     return params * x
        >>> batched = eb.batch(double, params=2.0)
        >>> types = batched.graph([1.0]).types
        >>> [str(each.key) for each in types.types]
        ['double/0']
    """

    def __init__(
        self,
        params_spec: Any,
        model: Callable[..., Any] | None = None,
        compute_dtype: np.dtype | None = None,
        tracer: "Callable[[NodeType, TypeTable], OutputSpec] | None" = None,
    ) -> None:
        self.params_spec = params_spec
        self.compute_dtype = compute_dtype
        # Called under the lock with a new type that is recorded, before it is in the
        # table and its outputs are set. Traces its cell and returns the outputs. Of
        # types that differ only in parameter paths, it is called for the first only.
        self._tracer = tracer
        self._model = _reference_to(model)
        self.model_name = "" if model is None else full_name(model)
        self.params: Any = None if params_spec is None else ParameterPath(params_spec)
        self.types: list[NodeType] = []
        self.kinds = ArrayKinds()
        self.lock = self.kinds.lock
        self.trees: dict[OutputTree, OutputTree] = {}
        self.x64 = x64_enabled()
        self._by_facts: dict[Hashable, NodeType] = {}
        self._variants: dict[TypeKey, int] = {}
        self._list_lengths = ListLengths()
        self._static_arguments = StaticArguments()
        self._input_shapes = InputShapes()
        self._counts: tuple[np.ndarray, ...] | None = None
        self._external_kinds = (np.zeros(1, np.int32), np.zeros(0, np.int32))
        self._keys: tuple[TypeKey, ...] = ()
        self._outputs = OutputTraces(params_spec, self.kinds, compute_dtype)
        self._derived: dict[Hashable, Any] = {}
        self.traces: dict[Hashable, Any] = {}
        self._lineage = Lineage()
        self._size_in_pickle: Size | None = None  # set if this is a copy from a pickle
        self._register()

    def __repr__(self) -> str:
        """Summary in one line."""
        names = ", ".join(str(each.key) for each in self.types[:_SHOWN])
        more = ", ..." if len(self.types) > _SHOWN else ""
        return f"<{type(self).__name__} of {len(self.types)} types: {names}{more}>"

    @property
    def model(self) -> Callable[..., Any] | None:
        """The model, as long as something else keeps it alive.

        JAX keeps the types of compiled functions alive, and must not keep data alive
        that a model closes over.
        """
        return None if self._model is None else self._model()

    @model.setter
    def model(self, model: Callable[..., Any] | None) -> None:
        self._model = _reference_to(model)

    @property
    def is_of_pickle(self) -> bool:
        """Whether only the model's name is known."""
        return self._model is None

    def _register(self) -> None:
        """Registers the table, so that pickles find it."""
        with lineage.lock:
            _tables.add(self)

    def __len__(self) -> int:
        return len(self.types)

    def __iter__(self) -> Iterator[NodeType]:
        """Iterates over the types known so far, in order."""
        return iter(tuple(self.types))

    @property
    def avals(self) -> list[Aval]:
        """Shape and dtype of each array kind."""
        return self.kinds.avals

    def derived(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Returns an object derived from the types, cached as long as the types live.

        Args:
            key: Everything that the object depends on besides the table.
            make: Derives it; two threads at once may both call it.

        Returns:
            The object that was made first, the same one in every call.
        """
        if key not in self._derived:
            self._derived.setdefault(key, make())
        found: Made = self._derived[key]
        return found

    def share_kinds(self, other: "TypeTable") -> None:
        """Makes this table use the array kinds of another one, present and future.

        Traces of cells are shared, too.

        Args:
            other: The table whose kinds are used.
        """
        self.kinds, self.lock, self.x64 = other.kinds, other.lock, other.x64
        self.compute_dtype, self.traces = other.compute_dtype, other.traces
        self._outputs = other._outputs

    def __copy__(self) -> "TypeTable":
        """Returns the table itself: copies of recordings belong to the same model."""
        return self

    def __deepcopy__(self, memo: Any) -> "TypeTable":
        """Returns the table itself: copies of recordings belong to the same model."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the present contents, cells by their names."""
        self.derived("the structure of parameters is pickled", self._check_spec)
        with self.lock:
            types, avals = tuple(self.types), tuple(self.avals)
            marks = self._marks()
        stored = tuple(map(store, types))
        what = (marks, self.params_spec, self.model_name, self.x64, avals, stored)
        return _load, (*what, self.compute_dtype)

    def _check_spec(self) -> bool:
        try:
            pickle.dumps(self.params_spec)
        except Exception as error:
            raise PickleError(
                "recordings are pickled with the structure of the parameters, but this"
                f" one, of type {type(self.params_spec).__name__}, cannot be: {error};"
                " define its classes at the top level of a module"
            ) from error
        return True

    def _size(self) -> Size:
        return len(self.types), len(self.avals)

    def _marks(self) -> Marks:
        return self._lineage.marks(self._size())

    def _extend(
        self, marks: Marks, avals: Sequence[Aval], stored: Sequence[StoredType]
    ) -> None:
        """Adds the contents of a pickle that this copy of its table lacks."""
        for each in avals[len(self.avals) :]:
            self.kinds.append(each)
        for one in stored[len(self.types) :]:
            leaves = template_for(self.params, one.template.leaves)
            template = replace(one.template, leaves=leaves)
            self._add(self._new_type(*one._replace(template=template), is_stored=True))
        self._lineage.shared = dict(marks)
        self._size_in_pickle = self._size()

    def take_over(self, other: "TypeTable") -> tuple[list[int], list[int]]:
        """Adds those types of a table from a pickle that are new here.

        Args:
            other: A table for parameters of the same structure.

        Returns:
            The positions of all its types and of all its array kinds in this table.

        Raises:
            PickleError: A cell returns other shapes, dtypes or structure than where it
                was recorded.
        """
        with other.lock:
            types, avals = tuple(other.types), tuple(other.avals)
        kinds = [self.kinds.number(each.shape, each.dtype) for each in avals]
        return [self._take(each, kinds) for each in types], kinds

    def _take(self, other: NodeType, kinds: Sequence[int]) -> int:
        operand_kinds, external_kinds, output_kinds = (
            tuple(kinds[kind] for kind in each)
            for each in (other.operand_kinds, other.external_kinds, other.output_kinds)
        )
        template = moved(other.template, self.params)
        facts = (other.cell, template, operand_kinds, external_kinds)
        return self._take_facts(facts, (output_kinds, other.output_tree))

    def take_portable(self, found: PortableType) -> int:
        """Adds a type that another process recorded, if it is new.

        Its array kinds are numbered in the order in which recording would meet them.

        Args:
            found: The type.

        Returns:
            Its position in this table.

        Raises:
            PickleError: A constant cannot be imported here, or the cell returns other
                shapes, dtypes or structure than where it was recorded.
        """
        externals, outputs, operands = (
            tuple([self.kinds.number(each.shape, each.dtype) for each in avals])
            for avals in (found.externals, found.outputs, found.operands)
        )
        leaves = template_for(self.params, found.template.leaves)
        template = replace(found.template, leaves=leaves)
        facts = (found.cell, template, operands, externals)
        return self._take_facts(facts, (outputs, found.output_tree))

    def _take_facts(
        self,
        facts: tuple[Cell, CallTemplate, tuple[int, ...], tuple[int, ...]],
        output: tuple[tuple[int, ...], Any],
    ) -> int:
        with self.lock:
            found = self._by_facts.get(call_identity(*facts))
            if found is None:
                found = self._add(self._new_type(*facts, *output, is_stored=True))
            if output != (found.output_kinds, found.output_tree):
                raise changed_cell(found)
            return found.id

    def add(self, node_type: NodeType) -> NodeType:
        """Adds a type that was not recorded but derived from recorded types.

        Args:
            node_type: The type, with this table's array kinds.

        Returns:
            The type with its position in this table.
        """
        with self.lock:
            added = replace(node_type, id=len(self.types))
            self.types.append(added)
            return added

    @property
    def keys(self) -> tuple[TypeKey, ...]:
        """The types' keys; the very same tuple until a type is added.

        So callers can recognize it by identity, without hashing or comparing many keys.
        """
        with self.lock:  # otherwise a type could be added meanwhile
            if len(self._keys) != len(self.types):
                self._keys = tuple(each.key for each in self.types)
            return self._keys

    @property
    def counts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Operand, external and output slots per type, each ``[T] int32``."""
        with self.lock:  # otherwise types could be added between two of the arrays
            if self._counts is None or len(self._counts[0]) != len(self.types):
                self._counts = tuple(
                    np.array(
                        [len(getattr(each, name)) for each in self.types], np.int32
                    )
                    for name in ("operand_kinds", "external_kinds", "output_kinds")
                )
            return self._counts  # type: ignore[return-value]

    @property
    def external_kinds(self) -> tuple[np.ndarray, np.ndarray]:
        """First external slot of each type and the end, and the slots' array kinds.

        ``[T + 1] int32`` and ``[X] int32``.
        """
        with self.lock:
            if len(self._external_kinds[0]) != len(self.types) + 1:
                own = [each.external_kinds for each in self.types]
                starts = np.cumsum([0, *map(len, own)], dtype=np.int32)
                kinds = np.array([kind for each in own for kind in each], np.int32)
                self._external_kinds = starts, kinds
            return self._external_kinds

    def intern(
        self,
        cell: Cell,
        template: CallTemplate,
        operand_kinds: tuple[int, ...],
        external_kinds: tuple[int, ...],
        by: Any,
    ) -> NodeType:
        """Returns the type of a call, traced once if it is new.

        Args:
            cell: The cell.
            template: The template of the call.
            operand_kinds: Array kind per operand slot.
            external_kinds: Array kind per external slot.
            by: The recorder of the calling instance.

        Returns:
            The node type.

        Raises:
            CellError: The function cannot be traced on these shapes.
            RecordingError: The limit of types is reached.
        """
        facts = (cell, template, operand_kinds, external_kinds)
        with self.lock:
            found = self._by_facts.get(call_identity(*facts))
            if found is None:
                by.tape.check_new_type(cell.name)
                new, trace = self._new_type(*facts), None
                if self._tracer is not None:
                    trace = partial(self._tracer, new, self)
                form = self._outputs.form_of(*facts)
                kinds, tree = self._outputs.of(form, new, trace)
                found = self._add(replace(new, output_kinds=kinds, output_tree=tree))
                by.tape.note_new_type()
                self._list_lengths.add(cell, found.key.path, template.treedef)
                self._static_arguments.add(cell, found.key.path, template, by)
                shapes = [self.avals[kind].shape for kind in external_kinds]
                self._input_shapes.add(
                    cell, found.key.path, template.treedef, shapes, by
                )
            return found

    def _add(self, node_type: NodeType) -> NodeType:
        """Adds a type, and returns it with its position and variant."""
        key = replace(node_type.key, variant=self._variants.get(node_type.key, 0))
        found = replace(node_type, id=len(self.types), key=key)
        self._variants[node_type.key] = key.variant + 1
        # `types` first: after an exception between the two lines, such as Ctrl-C, no
        # type can be found that is not in the list.
        self.types.append(found)
        facts = found.cell, found.template, found.operand_kinds, found.external_kinds
        self._by_facts[call_identity(*facts)] = found
        return found

    def _new_type(
        self,
        cell: Cell,
        template: CallTemplate,
        operand_kinds: tuple[int, ...],
        external_kinds: tuple[int, ...],
        output_kinds: tuple[int, ...] = (),
        output_tree: Any = None,
        *,
        is_stored: bool = False,
    ) -> NodeType:
        """Makes a type for `_add`, which sets its position and variant."""
        return NodeType(
            id=len(self.types),
            key=TypeKey(
                cell.name, parameter_names(template.leaves), len(operand_kinds)
            ),
            cell=cell,
            function=self._outputs.function_of(cell),
            template=template,
            operand_kinds=operand_kinds,
            external_kinds=external_kinds,
            output_kinds=output_kinds,
            output_tree=output_tree,
            is_stored=is_stored,
        )

    def trace(self, node_type: NodeType) -> tuple[tuple[int, ...], Any]:
        """Traces a type's cell again and returns the kinds and tree of its output.

        Args:
            node_type: The type.

        Returns:
            The array kind of each output, and the pytree structure of the outputs.

        Raises:
            CellError: It cannot be traced on the type's shapes.
        """
        return self._outputs.trace(node_type)


def x64_enabled() -> bool:
    """Tells whether ``jax_enable_x64`` is on, in this thread and context."""
    return bool(_config.jax_enable_x64)


# All tables that are recorded to or come from a pickle; see `lineage`.
_tables: "weakref.WeakSet[TypeTable]" = weakref.WeakSet()


def _load(
    marks: Marks,
    params_spec: Any,
    model_name: str,
    x64: bool,
    avals: Sequence[Aval],
    stored: Sequence[StoredType],
    compute_dtype: np.dtype | None = None,
) -> TypeTable:
    """Finds the table of a pickle among those of this process, or creates a copy."""
    size = len(stored), len(avals)
    with lineage.lock:
        for table in list(_tables):
            with table.lock:
                shared = lineage.common(table._marks(), marks)
                if shared[0] >= size[0] and shared[1] >= size[1]:
                    return table
                if table._size_in_pickle == table._size() == shared:
                    table._extend(marks, avals, stored)
                    return table
        table = TypeTable(params_spec, compute_dtype=compute_dtype)
        table.model_name, table.x64 = model_name, x64
        table._extend(marks, avals, stored)
        return table


def _reference_to(
    model: Callable[..., Any] | None,
) -> Callable[[], Callable[..., Any] | None] | None:
    """Returns a reference that does not keep a model alive, if there can be one."""
    if model is None:
        return None
    try:
        return weakref.ref(model)
    except TypeError:  # for example, its class has slots
        return lambda: model


def changed_cell(node_type: NodeType) -> PickleError:
    """Returns the error for a stored type whose cell returns something else here."""
    return PickleError(
        "a recording runs with the cells that it was made with, but cell"
        f" {node_type.key.cell!r} returned other shapes or dtypes there than here;"
        " usually its code, or jax_enable_x64, was changed since; record again"
    )
