"""Finds bounds, signs and possible overflows of the numbers that a cell computes.

The analysis does not know the cell's inputs. It assumes that they are finite and that
sums and products of them do not overflow, while exponentials and powers may. From this
it follows where a derivative is finite: the exponential of a negative number does not
overflow, and the denominator of a softmax that subtracts the maximum first is at least
one.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from edbatch.cell.jaxpr import (
    JaxprEqn,
    Literal,
    Var,
    broadcast_dims,
    dtype_of,
    exponent_of,
    has_rule_of_jvp,
    inner_bodies,
    is_float,
    literal_value,
    name_of,
    reduced_axes,
    shape_of,
    size_of,
    variables,
)
from edbatch.cell.primitives import (
    CAST,
    EXPONENTIALS,
    FINITE_DERIVATIVE,
    KEEPS_SIGN,
    NOT_NEGATIVE,
    OVERFLOWS,
    POLE_AT_ZERO,
    RANGES,
    STOP_GRADIENT,
    UNDERFLOWS,
    VIEWS,
)

Range = tuple[float, float]
_ALL: Range = (-math.inf, math.inf)
_NO_LIMIT = {"max": -math.inf, "min": math.inf}
# For each axis of an array, the corresponding axis of another one; None if it has none.
_Axes = tuple[int | None, ...]


class ValueRanges:
    """Known properties of the variables of some equations.

    Args:
        eqns: Equations, each after the equations that it reads.
        infinite: Variables that they read and that contain infinities or NaN.

    Attributes:
        positive: Variables that are positive wherever they are finite, such as the
            denominator of a softmax, or the variance of a normalisation with a small
            number added. Exponentials, products and quotients may underflow to zero;
            numbers below the smallest normal number count as zero, because XLA rounds
            them to zero on many devices.
        infinite: Variables that may be infinite or NaN although all inputs are finite.
    """

    def __init__(
        self, eqns: Iterable[JaxprEqn], infinite: Collection[Var] = ()
    ) -> None:
        self.positive: set[Var] = set()
        self.infinite: set[Var] = set(infinite)
        self._not_negative: set[Var] = set()
        self._exponentials: set[Var] = set()
        self._ranges: dict[Var, Range] = {}
        # Variables that hold a maximum along some axes: the variable whose maximum it
        # is, and how the axes of the first map to those of the second.
        self._largest: dict[Var, tuple[Any, _Axes]] = {}
        # Axes along which the maximum of a variable is 0; for exponentials of such
        # variables, axes along which it is 1.
        self._peaks: dict[Var, frozenset[int]] = {}
        self._made_by: dict[Var, JaxprEqn] = {}
        for eqn in eqns:
            self._made_by |= dict.fromkeys(eqn.outvars, eqn)
            if not any(map(is_float, eqn.outvars)):
                continue
            self._note_largest(eqn)
            self._note_range(eqn)
            if self._may_be_infinite(eqn):
                self.infinite.update(each for each in eqn.outvars if is_float(each))
            self._note_sign(eqn)

    def is_positive(self, atom: Any) -> bool:
        """Returns whether a number is positive wherever it is finite."""
        if isinstance(atom, Literal):
            return _compares(np.greater_equal, atom, _limits(atom)[0])
        return atom in self.positive

    def is_infinite(self, atom: Any) -> bool:
        """Returns whether a number may be infinite or NaN."""
        if isinstance(atom, Literal):
            return is_float(atom) and not is_finite(literal_value(atom))
        return atom in self.infinite

    def is_pole(self, eqn: JaxprEqn) -> bool:
        """Returns whether a primitive may have a pole at its inputs.

        A primitive that calls functions has their poles, which are not examined here.
        """
        name, exponent = name_of(eqn), exponent_of(eqn)
        if exponent is not None:
            return exponent < 0
        if name in POLE_AT_ZERO:
            return not self.is_positive(eqn.invars[POLE_AT_ZERO[name]])
        return name not in FINITE_DERIVATIVE and any(map(is_float, eqn.invars))

    def reads_infinite(self, eqn: JaxprEqn) -> bool:
        """Returns whether a floating-point input of an equation may be infinite or NaN.

        Limits without an effect do not count, such as the ``-inf`` that JAX adds when
        it computes a maximum.
        """
        name, read = name_of(eqn), list(eqn.invars)
        if name == "clamp":
            read = [read[1]]
        elif name in _NO_LIMIT:
            no_limit = (_NO_LIMIT[name], _NO_LIMIT[name])
            read = [
                each
                for each in read
                if not isinstance(each, Literal) or self._range(each) != no_limit
            ]
        return any(is_float(each) and self.is_infinite(each) for each in read)

    def _range(self, atom: Any) -> Range:
        if isinstance(atom, Literal):
            value = literal_value(atom)
            if not value.size or np.iscomplexobj(value):
                return _ALL
            return float(value.min()), float(value.max())
        return self._ranges.get(atom, _ALL)

    def _may_be_infinite(self, eqn: JaxprEqn) -> bool:
        name = name_of(eqn)
        if self.reads_infinite(eqn):
            return True
        if not any(map(is_float, eqn.invars)):
            return False
        if name in OVERFLOWS:
            return self._range(eqn.outvars[0])[1] == math.inf
        if name == "pow" and math.inf in map(abs, self._range(eqn.invars[1])):
            return True
        if self.is_pole(eqn):
            return True
        if has_rule_of_jvp(eqn):
            return False  # functions with a rule are assumed to handle limits
        return any(
            ValueRanges(body.equations).is_infinite(each)
            for body in inner_bodies(eqn)
            for each in body.outputs
        )

    def _note_largest(self, eqn: JaxprEqn) -> None:
        """Tracks maxima along some axes, as subtracted in a softmax."""
        name, read = name_of(eqn), eqn.invars
        if name == "reduce_max":
            axes = reduced_axes(eqn)
            kept = (k for k in range(len(shape_of(read[0]))) if k not in axes)
            self._largest[eqn.outvars[0]] = read[0], tuple(kept)
            return
        known = [each for each in variables(read) if each in self._largest]
        if len(known) != 1:
            return
        source, axes_of = self._largest[known[0]]
        if (dims := broadcast_dims(eqn)) is not None:
            moved: list[int | None] = [None] * len(shape_of(eqn.outvars[0]))
            for axis, place in zip(axes_of, dims, strict=True):
                moved[place] = axis
            self._largest[eqn.outvars[0]] = source, tuple(moved)
        elif (
            name in (STOP_GRADIENT, CAST, "copy")
            or (name == "select_n" and self._is_where_finite(eqn))
            or (name == "max" and self._is_above_all(read, known[0]))
        ):
            self._largest[eqn.outvars[0]] = source, axes_of

    def _is_above_all(self, read: Iterable[Any], one: Var) -> bool:
        """Whether `one` is the maximum of some numbers because all others are -inf."""
        others = [each for each in read if each is not one]
        return all(
            isinstance(each, Literal) and self._range(each)[1] == -math.inf
            for each in others
        )

    def _is_where_finite(self, eqn: JaxprEqn) -> bool:
        """Whether an equation keeps a number where it is finite, as in a logsumexp."""
        which, *read = eqn.invars
        made = self._made_by.get(which) if isinstance(which, Var) else None
        return (
            made is not None
            and name_of(made) == "is_finite"
            and len(read) == 2
            and made.invars[0] is read[1]
        )

    def _peak_of(self, eqn: JaxprEqn) -> frozenset[int] | None:
        """The axes along which a difference is at most zero, and zero at least once."""
        if name_of(eqn) != "sub" or not isinstance(eqn.invars[1], Var):
            return None
        source, axes = self._largest.get(eqn.invars[1], (None, ()))
        if source is not eqn.invars[0] or self.is_infinite(source):
            return None
        ndim = len(shape_of(source))
        in_place = all(axis in (None, k) for k, axis in enumerate(axes))
        if not in_place or len(axes) not in (0, ndim):
            return None
        return frozenset(k for k in range(ndim) if k not in axes)

    def _note_range(self, eqn: JaxprEqn) -> None:
        out = eqn.outvars[0]
        if jnp.issubdtype(dtype_of(out), jnp.floating):
            self._find_range(eqn, out)
            if out in self._ranges:
                self._ranges[out] = _within_limits(self._ranges[out], _limits(out))

    def _find_range(self, eqn: JaxprEqn, out: Var) -> None:
        name = name_of(eqn)
        peak = self._peak_of(eqn)
        if peak is not None:
            self._ranges[out] = (-math.inf, 0.0)
            self._peaks[out] = peak
            return
        if name in OVERFLOWS:
            low, high = self._range(eqn.invars[0])
            self._ranges[out] = _exponential(name, low, high, dtype_of(out))
            source = eqn.invars[0]
            if name == "exp" and isinstance(source, Var) and source in self._peaks:
                self._peaks[out] = self._peaks[source]
        elif name in RANGES:
            self._ranges[out] = RANGES[name]
        elif name == CAST:
            source = eqn.invars[0]
            if isinstance(source, Var) and source in self._peaks:
                self._peaks[out] = self._peaks[source]
            self._ranges[out] = self._range(source)
        else:
            found = self._range_of(eqn)
            if found != _ALL and not any(map(math.isnan, found)):
                self._ranges[out] = found

    def _range_of(self, eqn: JaxprEqn) -> Range:
        """The range of an equation's first result, from the ranges of its inputs."""
        name, read = name_of(eqn), eqn.invars
        if name in VIEWS or name in ("slice", "rev", "copy", STOP_GRADIENT, "gather"):
            return self._range(read[0])
        if name in ("dynamic_slice", "reduce_max", "reduce_min", "split"):
            return self._range(read[0])
        if name == "select_n":
            return self._selected(eqn)
        ranges = [self._range(each) for each in read]
        lows, highs = [low for low, _ in ranges], [high for _, high in ranges]
        match name:
            case "concatenate":
                return min(lows), max(highs)
            case "max":
                return max(lows), max(highs)
            case "min":
                return min(lows), min(highs)
            case "clamp":
                return lows[0], highs[2]
            case "neg":
                return -highs[0], -lows[0]
            case "add" | "add_any":
                return sum(lows), sum(highs)
            case "sub":
                return lows[0] - highs[1], highs[0] - lows[1]
            case "abs":
                return 0.0, max(-lows[0], highs[0])
            case "square":
                return 0.0, max(lows[0] * lows[0], highs[0] * highs[0])
            case "sqrt" if lows[0] >= 0:
                return math.sqrt(lows[0]), math.sqrt(highs[0])
            case "rsqrt" if lows[0] > 0:
                return 1 / math.sqrt(highs[0]), 1 / math.sqrt(lows[0])
            case "integer_pow" if exponent_of(eqn) in (2, 4):
                return 0.0, math.inf
            case "mul" if read[0] is read[1]:
                return 0.0, math.inf
            case "mul":
                return _product(*ranges)
            case "div" if self.is_positive(read[1]) and lows[1] > 0:
                return _product(ranges[0], (1 / highs[1], 1 / lows[1]))
            case "div" if self.is_positive(read[1]):
                return _product(ranges[0], (0.0, math.inf))
            case "reduce_sum" if self._sums_peaks(eqn):
                return 1.0, math.inf
            case "reduce_sum":
                count = size_of(read[0]) / max(1, size_of(eqn.outvars[0]))
                return _product(ranges[0], (count, count))
        return _ALL

    def _selected(self, eqn: JaxprEqn) -> Range:
        """The range of a selection, including that of ``where(x > 0, 0, x)``."""
        which, *read = eqn.invars
        made = self._made_by.get(which) if isinstance(which, Var) else None
        ranges = [self._range(each) for each in read]
        if (
            made is not None
            and len(read) == 2
            and name_of(made) in ("gt", "ge")
            and made.invars[0] is read[0]
        ):  # the first is chosen where it is not above the limit
            low, high = ranges[0]
            ranges[0] = low, min(high, self._range(made.invars[1])[1])
        return min(low for low, _ in ranges), max(high for _, high in ranges)

    def _note_sign(self, eqn: JaxprEqn) -> None:
        name = name_of(eqn)
        read = eqn.invars[1:] if name == "select_n" else eqn.invars
        if not all(is_float(each) for each in (*read, *eqn.outvars)):
            return
        if (
            (_stays_positive(eqn) and all(map(self.is_positive, read)))
            or (name == "max" and any(map(self.is_positive, read)))
            or (
                name == "add"
                and any(map(self.is_positive, read))
                and all(map(self._is_not_negative, read))
            )
            or self._range(eqn.outvars[0])[0] > 0
        ):
            self.positive.update(eqn.outvars)
        elif name in EXPONENTIALS or (
            name in KEEPS_SIGN and all(map(self._is_exponential, read))
        ):
            self._exponentials.update(eqn.outvars)
        elif (
            name in NOT_NEGATIVE
            or exponent_of(eqn) in (2, 4)
            or (name == "mul" and read[0] is read[1])
            or (name in (*KEEPS_SIGN, "add") and all(map(self._is_not_negative, read)))
        ):
            self._not_negative.update(eqn.outvars)

    def _sums_peaks(self, eqn: JaxprEqn) -> bool:
        """Whether each of some sums of exponentials contains a one."""
        source = eqn.invars[0]
        peak = self._peaks.get(source) if isinstance(source, Var) else None
        return (
            peak is not None
            and self._is_exponential(source)
            and peak <= set(reduced_axes(eqn))
        )

    def _is_exponential(self, atom: Any) -> bool:
        return self.is_positive(atom) or (
            not isinstance(atom, Literal) and atom in self._exponentials
        )

    def _is_not_negative(self, atom: Any) -> bool:
        if isinstance(atom, Literal):
            return _compares(np.greater_equal, atom, 0)
        return self._is_exponential(atom) or atom in self._not_negative


def infinite_constants(constants: Mapping[Var, Any]) -> set[Var]:
    """Finds the constants that contain infinities or NaN.

    Args:
        constants: Arrays by variable. Arrays whose values are not available here,
            because they are traced or on other processes, are assumed to be finite.

    Returns:
        The variables of floating-point arrays that are not finite throughout.
    """
    return {
        var
        for var, array in constants.items()
        if is_float(var)
        and not isinstance(array, jax.core.Tracer)
        and getattr(array, "is_fully_addressable", True)
        and not is_finite(array)
    }


def is_finite(array: Any) -> bool:
    """Returns whether all numbers of a floating-point array are finite."""
    return bool(np.isfinite(np.asarray(array)).all())


def _compares(compare: np.ufunc, literal: Literal, number: float) -> bool:
    """Compares a literal with a number; a NaN is neither above nor below."""
    with np.errstate(invalid="ignore"):  # NumPy warns of a NaN in bfloat16
        return bool(np.all(compare(literal_value(literal), number)))


def _limits(atom: Any) -> Range:
    """The smallest normal number and the largest number of a dtype."""
    if not jnp.issubdtype(dtype_of(atom), jnp.inexact):
        return 1.0, math.inf
    finfo: Any = jnp.finfo
    info = finfo(dtype_of(atom))
    return float(info.tiny), float(info.max)


def _within_limits(found: Range, limits: Range) -> Range:
    """A range after rounding to a dtype; its numbers are finite if the bounds are."""
    (low, high), (tiny, most) = found, limits
    low, high = (
        bound if math.isinf(bound) else min(max(bound, -most), most)
        for bound in (low, high)
    )
    return (0.0 if 0 < low < tiny else low), (0.0 if -tiny < high < 0 else high)


def _stays_positive(eqn: JaxprEqn) -> bool:
    """Whether results are positive if all inputs are; false if they may underflow."""
    name = name_of(eqn)
    if name == CAST:
        return _limits(eqn.outvars[0])[0] <= _limits(eqn.invars[0])[0]
    return name == "abs" or (name in KEEPS_SIGN and name not in UNDERFLOWS)


def _product(one: Range, two: Range) -> Range:
    """The range of products; zero times a bound is zero, because numbers are finite."""
    found = [0.0 if 0 in (a, b) else a * b for a in one for b in two]
    return min(found), max(found)


def _exponential(name: str, low: float, high: float, dtype: Any) -> Range:
    """The range of an exponential; infinite if it may overflow."""
    finfo: Any = jnp.finfo
    info = finfo(dtype)
    base = math.log(2) if name == "exp2" else 1.0
    least, most = math.log(float(info.tiny)), math.log(float(info.max))
    top = math.exp(base * high) if base * high < most else math.inf
    bottom = math.exp(base * low) if base * low > least else 0.0
    shift = 1.0 if name == "expm1" else 0.0
    return bottom - shift, top - shift
