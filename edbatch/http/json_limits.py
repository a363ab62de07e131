"""Limits on JSON, checked before parsing, in time linear in its length."""

import json
import re
from typing import Any

import numpy as np

from edbatch.http.refusal import Refusal

# An unclosed string extends to the end of the text, so no character is read twice.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NOT_FINITE = re.compile(rb"NaN|Infinity")
# The lookbehind makes it match at the beginning of digits only, not at each digit.
_MAYBE_HUGE = re.compile(rb"[eE]\+?[0-9]{2}|(?<![0-9])[0-9]{300}")
_BRACKETS = np.zeros(256, np.int8)
_BRACKETS[list(b"[{")] = 1
_BRACKETS[list(b"]}")] = -1


def check_json_text(body: bytes, max_depth: int) -> None:
    """Checks the nesting depth of JSON, and that its numbers are finite.

    Args:
        body: The text, which may be invalid JSON.
        max_depth: Maximum number of brackets open at once.

    Raises:
        Refusal: The text is nested too deeply, or a number is not finite.

    Example:
        >>> check_json_text(b'{"a": [1, "]]][[[["]}', 2)
        >>> check_json_text(b"[[[1]]]", 2)
        Traceback (most recent call last):
            ...
        edbatch.http.refusal.Refusal: the body is nested 3 deep but may be 2; send ...
    """
    text = _STRING.sub(b"", body)
    steps = _BRACKETS[np.frombuffer(text, np.uint8)]
    depth = int(np.cumsum(steps, dtype=np.int64).max(initial=0))
    if depth > max_depth:
        raise Refusal(
            400,
            "nested_too_deeply",
            f"the body is nested {depth:,} deep but may be {max_depth:,}; send a"
            " flatter input",
        )
    if _NOT_FINITE.search(text):
        raise _not_finite()
    if _MAYBE_HUGE.search(text):
        _check_huge(body)


def _check_huge(body: bytes) -> None:
    """Refuses numbers like 1e999, which are valid JSON but parse as infinity."""
    try:
        # UTF-8 only: in other encodings the brackets were not counted.
        text = str(body, "utf-8-sig")
        json.loads(text, parse_float=_finite, parse_int=_short)
    except ValueError:  # not JSON: the parser that follows reports where
        return


def _finite(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise _not_finite()
    return value


def _short(digits: str) -> Any:
    if len(digits) > 300:
        raise _not_finite()
    return 0


def _not_finite() -> Refusal:
    return Refusal(
        400,
        "number_out_of_range",
        "the body holds a number that is not finite, or has hundreds of digits; send"
        " numbers that fit 64 bits",
    )
