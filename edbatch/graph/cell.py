"""Cells: the small JAX functions whose calls become nodes."""

import functools
import inspect
import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic

import jax
import jax.numpy as jnp
import numpy as np

from edbatch.arguments import check_number, check_type, list_of
from edbatch.errors import (
    CellError,
    PickleError,
    shown,
    user_line,
    user_module,
)
from edbatch.graph.compute_dtype import computing
from edbatch.graph.constants import (
    Constant,
    constant_key,
    number_marks,
    with_constants,
)
from edbatch.graph.context import context
from edbatch.graph.node_keys import missing_key
from edbatch.graph.recording_bases import CellCall
from edbatch.graph.reference import find, full_name, reference
from edbatch.graph.stand_in import is_stand_in
from edbatch.graph.unbatched_arrays import as_arrays, as_constants, as_outputs

if TYPE_CHECKING:  # for type checkers; a bare `Cell` is `Cell[..., Any]`
    from typing_extensions import ParamSpec, TypeVar

    P = ParamSpec("P", default=...)
    R = TypeVar("R", default=Any)
else:
    from typing import ParamSpec, TypeVar

    P, R = ParamSpec("P"), TypeVar("R")

RNG = "rng"  # name of the argument by which a cell requests a random key
CELLS_MADE = itertools.count()


class Cell(CellCall, Generic[P, R]):
    """A function of one instance; while a model is recorded, each call makes a node.

    Called with arrays, it runs immediately; that defines what the batched program
    computes. It also runs immediately if another cell calls it. Numbers and NumPy
    arrays become JAX arrays, both in immediate and in batched runs: dtypes, division by
    zero and out-of-range indices behave as in JAX.

    Attributes:
        name: Name in messages, tables and policy files.
        function: The function as written.
        number: Number of cells that were created before.
        padded: Names of its padded list arguments.
        static: Names of arguments that are compile-time constants.
        takes_rng: Whether each call gets its own random key.

    Example:
        >>> import edbatch as eb
        >>> double = eb.Cell(lambda x: 2 * x, name="double")
        >>> double, double(3).item()
        (<cell 'double'>, 6)
    """

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        padded: Sequence[str] = (),
        static: Sequence[str] = (),
        lengths: Sequence[int] = (1, 2, 4, 8, 16, 32, 64),
    ) -> None:
        if not callable(function):
            raise CellError(
                "eb.cell marks a function as a cell but received"
                f" {shown(function)}, of type {type(function).__name__}; write @eb.cell"
                " above the function, and options by name, @eb.cell(static=('n',))"
            )
        try:
            hash(function)
        except TypeError:
            raise CellError(
                f"eb.cell received {type(function).__name__}, a callable that is not"
                " hashable; make its class hashable, a dataclass by"
                " @dataclass(frozen=True)"
            ) from None
        if name is not None:
            check_type(CellError, "the name of a cell", name, str, "text")
        one = "an argument's name"
        self.padded: tuple[str, ...] = tuple(
            list_of(CellError, "padded of eb.cell", padded, one)
        )
        self.static: tuple[str, ...] = tuple(
            list_of(CellError, "static of eb.cell", static, one)
        )
        self.number = next(CELLS_MADE)
        self.function: Callable[P, R] = function
        self.name: str = name if name else getattr(function, "__name__", "cell")
        self._lengths = _checked_lengths(lengths)
        parameters = inspect.signature(function).parameters
        self.names = tuple(parameters)
        by_position = (
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
        )
        # Arguments before ``*args``; those after it can be passed by name only.
        self.positions = {
            each: k
            for k, (each, own) in enumerate(parameters.items())
            if own.kind in by_position
        }
        self.variadic = next(
            (name for name, p in parameters.items() if p.kind is p.VAR_POSITIONAL), None
        )
        self.masks = {
            each: "mask" if len(self.padded) == 1 else f"{each}_mask"
            for each in self.padded
        }
        self._check_names(parameters)
        self._mask_positions = {
            each: self.positions[each]
            for each in self.masks.values()
            if parameters[each].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        }
        self.takes_rng = RNG in parameters and RNG not in self.padded + self.static
        if self.takes_rng:
            self._check_rng(parameters)
        self.static_positions = {
            self.positions[each]: each for each in self.static if each in self.positions
        }
        self.special = {*self.static_positions} | {
            self.positions[each] for each in self.padded if each in self.positions
        }
        self.plain = not self.special
        self._made_in = user_module()
        functools.update_wrapper(self, function, updated=())

    if TYPE_CHECKING:  # recording is in the base class, which may be compiled

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
            """Runs the cell, or records the call."""

    def _check_names(self, parameters: Mapping[str, inspect.Parameter]) -> None:
        """Checks that the function has the masks and the arguments named in options."""
        for each in self.padded + self.static:
            if each not in parameters:
                raise CellError(
                    f"cell {self.name!r} has no argument {shown(each)} to be padded or"
                    f" static; its arguments are {', '.join(parameters)}"
                )
        for mask in self.masks.values():
            if mask not in parameters:
                raise CellError(
                    f"cell {self.name!r} has a padded list but no keyword argument"
                    f" {mask!r}; add it to the function: it receives a boolean array"
                    " that is False where the list was padded"
                )

    def _check_rng(self, parameters: Mapping[str, inspect.Parameter]) -> None:
        own = parameters[RNG]
        self._has_default_rng = own.default is not own.empty
        self._rng_by_name = own.kind is own.KEYWORD_ONLY
        later = list(parameters.values())[self.names.index(RNG) + 1 :]
        filled = self.masks.values()
        for each in later:
            if each.kind is each.POSITIONAL_OR_KEYWORD and each.name not in filled:
                raise CellError(
                    f"edbatch fills in 'rng', so it comes behind the arguments that are"
                    f" passed, but cell {self.name!r} has {each.name!r} behind it; make"
                    " 'rng' the last argument"
                )

    def lacks_rng(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Tells whether a call leaves its random key to edbatch.

        Args:
            args: Positional arguments of the call.
            kwargs: Keyword arguments of the call.

        Returns:
            Whether the cell takes a key and the call does not pass one.
        """
        if not self.takes_rng or RNG in kwargs:
            return False
        return self._rng_by_name or len(args) <= self.positions[RNG]

    def require_default_rng(self) -> None:
        """Raises PlanError if the cell cannot run without a random key."""
        if not self._has_default_rng:
            raise missing_key(self.name)

    def padded_length(self, length: int) -> int:
        """Returns K: the length of a padded list rounded up to a bucket.

        Args:
            length: The length of the list.

        Returns:
            The bucket, or a multiple of the largest one.
        """
        for bucket in self._lengths:
            if length <= bucket:
                return bucket
        return -(-length // self._lengths[-1]) * self._lengths[-1]

    def _run_now(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self.lacks_rng(args, kwargs):
            return self._run(args, kwargs)
        own = self._next_key()
        try:
            return self._run(args, kwargs | own)
        except BaseException:
            if own and context.keys is not None:  # a failed call is not a node
                context.keys.give_back()
            raise

    def __repr__(self) -> str:
        return f"<cell {self.name!r}>"

    def __copy__(self) -> "Cell":
        """Returns the cell itself, as for functions."""
        return self

    def __deepcopy__(self, memo: Any) -> "Cell":
        """Returns the cell itself, as for functions."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the cell by its name, as for functions."""
        name = reference(self, (self._made_in,))
        if name is None:
            raise PickleError(
                f"a cell is pickled by the name under which it is imported, but cell"
                f" {self.name!r} ({full_name(self.function)}) has none; usually it is"
                " defined inside a function or is an element of a list; define it at"
                " the top level of a module"
            )
        return _find_cell, (*name, self._options())

    def _options(self) -> tuple[Any, ...]:
        """Returns the options that distinguish the cell from others of its name."""
        lengths = tuple(self._lengths) if self.padded else ()
        return self.name, self.padded, self.static, lengths, self.names

    def _next_key(self) -> dict[str, Any]:
        if context.inside:
            raise CellError(
                f"cell {self.name!r} takes a key, 'rng', but another cell calls it"
                f" without one ({user_line()}), and edbatch gives keys to the calls of"
                " the model alone; let the cell around it take 'rng' and pass rng= on,"
                " a part of jax.random.split if several need one, or rng=None"
            )
        if context.keys is not None:
            return {RNG: context.keys.next()}
        if self._has_default_rng:
            return {}
        raise CellError(
            f"cell {self.name!r} takes a key, 'rng', but this call has none; call the"
            " model inside `with eb.cell_keys(key):`, pass rng=key to the cell, or"
            " give the argument a default (rng=None)"
        )

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.check_positions(len(args))
        bound = list(args)
        named = dict(kwargs)
        for name, mask in self.masks.items():
            position = self.positions.get(name, len(bound))
            if name in named:
                named[name], named[mask] = self._stack(named[name], name)
            elif position < len(bound):  # otherwise the function raises
                bound[position], named[mask] = self._stack(bound[position], name)
        inside = context.inside
        convert: Callable[[Any], Any] = (
            as_constants
            if inside
            else functools.partial(as_arrays, self.name, jax_arrays=not context.jit)
        )
        for position, value in enumerate(bound):
            static = self.static_positions.get(position)
            if static is None:
                bound[position] = convert(value)
            elif context.jit:
                bound[position] = Constant(value, self.constant(value, static))
        for name, value in named.items():
            if name not in self.static:
                named[name] = convert(value)
            elif context.jit:
                named[name] = Constant(value, self.constant(value, name))
        marks: tuple[str, ...] = ()
        if context.jit and context.exact:
            marks = number_marks(jax.tree.structure((bound, named)))
        function = self._function_now(marks)
        context.inside = True
        try:
            found = function(*bound, **named)
        finally:
            context.inside = inside
        return as_outputs(found, inside=inside)

    def _function_now(self, marks: tuple[str, ...]) -> Callable[..., Any]:
        """Returns the function for this context: compiled or not, and in its dtype.

        Functions are cached by context and by the `number_marks` of their arguments.
        """
        dtype = context.compute_dtype
        if dtype is None and not context.jit:
            return self.function
        key = dtype, context.jit, marks
        apart = context.jitted
        functions = self._functions if apart is None else apart.setdefault(self, {})
        known = functions.get(key)
        if known is None:
            known = self.function_in(dtype)
            if context.jit:
                known = with_constants(known) if self.static else known
                if marks or apart is not None:  # JAX caches traces by function
                    known = functools.wraps(known)(functools.partial(known))
                known = jax.jit(known, static_argnames=self.static or None)
            functions[key] = known
        return known

    def function_in(self, dtype: Any) -> Callable[..., Any]:
        """Returns the cell's function, made to compute in a dtype.

        Args:
            dtype: A floating-point dtype; None for the function as it is.

        Returns:
            A function with the same arguments.
        """
        if dtype is None:
            return self.function
        return computing(self.function, tuple(self.positions), self.static, dtype)

    @functools.cached_property
    def _functions(self) -> dict[Any, Callable[..., Any]]:
        return {}

    def _stack(self, elements: Sequence[Any], name: str) -> tuple[Any, Any]:
        self.check_padded(elements, name)
        length = self.padded_length(len(elements))

        def stack(*leaves: Any) -> Any:
            stacked = jnp.stack(leaves)
            rest = [(0, length - len(leaves))] + [(0, 0)] * (stacked.ndim - 1)
            return jnp.pad(stacked, rest)

        mask = np.arange(length) < len(elements)
        return jax.tree.map(stack, *elements), jnp.asarray(mask)

    def constant(self, value: Any, name: str) -> Hashable:
        """Returns the key that identifies a static argument.

        Args:
            value: The argument's value.
            name: The argument's name.

        Returns:
            The key, see `constant_key`.

        Raises:
            CellError: The value is not a constant, or it has no hash; the message says
                how to fix it.
        """
        if is_stand_in(value):
            raise CellError(
                f"cell {self.name!r} received {value!r} as static argument {name!r}"
                f" ({user_line()}), but static arguments are constants, and this has no"
                " value while the model is recorded; leave it out of static="
            )
        try:
            found = constant_key(value)
            hash(found)
        except TypeError:
            raise CellError(
                f"cell {self.name!r} received {type(value).__name__} as static argument"
                f" {name!r} ({user_line()}), but static arguments must be hashable and"
                " this one is not; pass a tuple in place of a list, and an array as an"
                " ordinary argument"
            ) from None
        return found

    def check_positions(self, count: int) -> None:
        """Checks that no positional argument takes the place of a mask.

        Args:
            count: Number of positional arguments.

        Raises:
            CellError: An argument takes the place of a mask; the message says how to
                fix it.
        """
        for mask, position in self._mask_positions.items():
            if position < count:
                raise CellError(
                    f"cell {self.name!r} was called with {count} arguments by position"
                    f" ({user_line()}), one of which takes the place of the mask"
                    f" {mask!r}, which edbatch fills in; put the masks last in the"
                    " function's signature, or pass the arguments after them by name"
                )

    def check_padded(self, elements: Any, name: str) -> None:
        """Checks that a padded argument is a list with at least one element.

        Args:
            elements: The argument's value.
            name: The argument's name.

        Raises:
            CellError: It is not; the message says how to fix it.
        """
        is_list = isinstance(elements, (list, tuple))
        if not is_list or not elements:
            found = "an empty list" if is_list else type(elements).__name__
            hint = "where there is no element, call another cell (a leaf cell, say)"
            raise CellError(
                f"cell {self.name!r} takes a list with at least one element as padded"
                f" argument {name!r} but received {found}; "
                + (hint if is_list else "write [...] around a single element")
            )


def _find_cell(module: str, qualname: str, options: tuple[Any, ...]) -> Cell:
    """Returns the cell that a pickle refers to."""
    rule = (
        f"a pickle refers to cell {options[0]!r} by its name, {module}.{qualname}, but"
        " {}; {}"
    )
    try:
        found = find(module, qualname)
    except (ImportError, AttributeError) as error:
        fix = "make the module importable here, under the name that it had there"
        if module == "__main__":
            fix = (
                "the main program is another one here: define the cell in a module"
                " that both import"
            )
        raise PickleError(
            rule.format(f"it cannot be imported here ({error})", fix)
        ) from error
    if not isinstance(found, Cell) or found._options() != options:
        what = "a cell of other arguments" if isinstance(found, Cell) else repr(found)
        fix = "usually the code was changed since; record again with this code"
        raise PickleError(rule.format(f"this is {what} here", fix))
    return found


def _checked_lengths(lengths: Sequence[int]) -> list[int]:
    """Returns the lengths that padded lists may have, ascending."""
    lengths = list_of(CellError, "lengths of eb.cell", lengths, "a whole number")
    for each in lengths:
        check_number(CellError, "a length of a padded list", each, 1, whole=True)
    if not lengths:
        raise CellError(
            "a padded list has one of several lengths but lengths is empty; leave"
            " it out for powers of two"
        )
    return sorted(lengths)
