"""Hashes values by content: equal values have equal hashes in every process.

Keys made of these hashes identify programs, and a wrong program gives wrong numbers. So
only values that are known to be hashed completely are accepted: plain values, arrays,
dtypes, enumerations, dataclasses and named tuples of edbatch, JAX and NumPy, and jaxprs
of JAX's own primitives. Functions, and all other values that are not listed here, raise
`UnknownContentError`; the program is then traced.

Each part is written with its kind and its length, so that different values never give
the same bytes. Variables of a jaxpr are numbered in the order of their definition.
"""

import dataclasses
import enum
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from edbatch.cell.jaxpr import (
    Atom,
    Body,
    JaxprEqn,
    Var,
    as_body,
    generator_of,
    groups_text,
    has_rule_of_jvp,
    is_of_jax,
    is_unspecified,
    literal_value,
    name_of,
    parameters_of,
    tangents_of,
    trace_context_of,
    type_text,
)

_MODULES = ("edbatch", "jax", "numpy", "ml_dtypes")  # modules of known classes
_KEYS = ("key<fry>", "key<rbg>", "key<urbg>")  # dtypes of JAX's own generators


class UnknownContentError(Exception):
    """A value cannot be hashed by its content."""


class Content:
    """A hash of values, in the order in which they are added.

    Args:
        with_rules: Whether the hash of a `jax.custom_jvp` equation includes its rule,
            which is traced for this. JAX caches that trace, and with it the values of
            outer variables that the rule read.

    Example:
        >>> one, other = Content(), Content()
        >>> one.put((1, "a")), other.put((1, "b"))
        (None, None)
        >>> one.digest() == other.digest()
        False
    """

    def __init__(self, *, with_rules: bool = True) -> None:
        self._hash = hashlib.sha256()
        self._reads_rules = with_rules
        self._writers: dict[type, Callable[[Any], None]] = {
            bool: self._put_repr,
            int: self._put_repr,
            str: lambda value: self._write("str", value.encode()),
            bytes: lambda value: self._write("bytes", value),
            type(None): self._put_repr,
            float: self._put_number,
            complex: self._put_number,
            tuple: self._put_sequence,
            list: self._put_sequence,
            dict: self._put_mapping,
            frozenset: self._put_set,
            set: self._put_set,
            jax.ShapeDtypeStruct: self._put_struct,
            JaxprEqn: lambda value: self._put_equation(value, {}),
        }

    def digest(self) -> str:
        """Returns the hash of all added values, 64 hexadecimal digits."""
        return self._hash.hexdigest()

    def put(self, value: Any) -> None:
        """Adds a value.

        Args:
            value: A value of the kinds listed in the module's docstring.

        Raises:
            UnknownContentError: It, or a part of it, is of another kind.
        """
        writer = self._writers.get(type(value))
        if writer is not None:
            writer(value)
        elif isinstance(value, enum.Enum):
            self._write("enum", f"{_class_name(type(value))}.{value.name}".encode())
        elif isinstance(value, np.ndarray | np.generic | jax.Array):
            self._put_array(value)
        elif (body := as_body(value)) is not None:  # before str, which would print it
            self.put_body(body)
        elif isinstance(value, np.dtype) or str(value) in _KEYS:
            self._put_dtype(value)
        elif (generator := generator_of(value)) is not None:
            self._write("generator", generator.encode())
        elif (groups := groups_text(value)) is not None:
            self._write("groups", groups.encode())
        elif is_unspecified(value):
            self._write("nothing", b"")
        else:
            self._put_record(value)

    def put_body(self, body: Body) -> None:
        """Adds a traced function: its constants, equations and results.

        Args:
            body: The function.

        Raises:
            UnknownContentError: An equation has a parameter that cannot be hashed, a
                primitive that is not JAX's, an effect or a `jax.custom_vjp` rule.
        """
        number: dict[Var, int] = {}
        self._write("body", b"")
        self._define(body.inputs, number)
        self._define(body.constants, number)
        self._put_sequence(list(body.constants.values()))
        for eqn in body.equations:
            self._put_equation(eqn, number)
        self._read(body.outputs, number)

    def _put_equation(self, eqn: JaxprEqn, number: dict[Var, int]) -> None:
        if not is_of_jax(eqn) or eqn.effects:
            raise UnknownContentError(f"the operation {eqn}")
        surroundings = trace_context_of(eqn)
        if surroundings is None:
            raise UnknownContentError(f"where {name_of(eqn)} runs")
        self._write("equation", name_of(eqn).encode())
        self._put_mapping(parameters_of(eqn))
        self._put_sequence(surroundings)
        if has_rule_of_jvp(eqn) and self._reads_rules:
            self._put_rule(eqn)
        self._read(eqn.invars, number)
        self._define(eqn.outvars, number)

    def _put_rule(self, eqn: JaxprEqn) -> None:
        """Adds a `jax.custom_jvp` rule.

        Programs have first derivatives only, so the rules of functions that the rule
        itself calls, often the original function, are not added.
        """
        rule = tangents_of(eqn)
        if rule is None:
            raise UnknownContentError(f"the rule of {name_of(eqn)}")
        self._reads_rules = False
        self.put_body(rule)
        self._reads_rules = True

    def _define(self, variables: Iterable[Var], number: dict[Var, int]) -> None:
        for each in variables:
            number[each] = len(number)
            self._put_type(each)
        self._write("defined", b"")

    def _read(self, atoms: Sequence[Atom], number: dict[Var, int]) -> None:
        for each in atoms:
            if isinstance(each, Var):
                if each not in number:
                    raise UnknownContentError("a variable of another function")
                self._write("variable", str(number[each]).encode())
            else:
                self._put_type(each)
                self._put_array(literal_value(each))
        self._write("read", b"")

    def _put_type(self, atom: Any) -> None:
        text = type_text(atom)
        if text is None:
            raise UnknownContentError("a variable that is no array, or on a mesh")
        self._write("type", text.encode())

    def _put_array(self, value: Any) -> None:
        try:
            array = np.asarray(value)
        except Exception as error:  # keys, deleted arrays, tracers
            raise UnknownContentError(f"an array of {type(value)}") from error
        if array.dtype.hasobject:
            raise UnknownContentError("an array of objects")
        if isinstance(value, jax.Array):
            self._put_type(jax.typeof(value))
        self._put_dtype(array.dtype)
        self._write("shape", repr(array.shape).encode())
        self._write("data", array.tobytes())

    def _put_dtype(self, dtype: Any) -> None:
        if isinstance(dtype, np.dtype):
            self._write("dtype", f"{dtype.str} {dtype.name}".encode())
        elif str(dtype) in _KEYS:
            self._write("dtype", str(dtype).encode())
        else:
            raise UnknownContentError(f"the dtype {dtype}")

    def _put_struct(self, struct: jax.ShapeDtypeStruct) -> None:
        if struct.sharding is not None:
            raise UnknownContentError("an array with a sharding")
        self._write("struct", repr((struct.shape, struct.weak_type)).encode())
        self._put_dtype(struct.dtype)

    def _put_repr(self, value: Any) -> None:
        self._write(type(value).__name__, repr(value).encode())

    def _put_number(self, value: complex) -> None:
        self._write(type(value).__name__, np.asarray(value).tobytes())

    def _put_sequence(self, values: Sequence[Any]) -> None:
        self._write(type(values).__name__, str(len(values)).encode())
        for each in values:
            self.put(each)

    def _put_mapping(self, values: Mapping[Any, Any]) -> None:
        self._write("dict", str(len(values)).encode())
        for key in sorted(values, key=repr):
            self.put(key)
            self.put(values[key])

    def _put_set(self, values: Iterable[Any]) -> None:
        self._write("set", b"")
        self._put_sequence(sorted(map(digest_of, values)))

    def _put_record(self, value: Any) -> None:
        """Adds a class, or an instance of a dataclass or a named tuple."""
        own = value if isinstance(value, type) else type(value)
        if own.__module__.partition(".")[0] not in (*_MODULES, "builtins"):
            raise UnknownContentError(f"a value of {own}")
        if isinstance(value, type):
            self._write("class", _class_name(value).encode())
            return
        if dataclasses.is_dataclass(value):
            names = tuple(each.name for each in dataclasses.fields(value))
        elif isinstance(value, tuple) and hasattr(value, "_fields"):
            names = value._fields
        else:
            raise UnknownContentError(f"a value of {own}")
        self._write("record", _class_name(own).encode())
        self._put_mapping({name: getattr(value, name) for name in names})

    def _write(self, kind: str, content: bytes) -> None:
        self._hash.update(f"{kind}:{len(content)}:".encode())
        self._hash.update(content)


def digest_of(value: Any) -> str:
    """Returns the hash of one value.

    Args:
        value: As for `Content.put`.

    Returns:
        64 hexadecimal digits.

    Raises:
        UnknownContentError: As `Content.put`.

    Example:
        >>> digest_of(1.0) == digest_of(1), digest_of([2]) == digest_of([2])
        (False, True)
    """
    content = Content()
    content.put(value)
    return content.digest()


def _class_name(own: type) -> str:
    return f"{own.__module__}.{own.__qualname__}"
