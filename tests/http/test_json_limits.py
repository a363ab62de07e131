"""Limits on JSON, compared with a reference parser that counts single brackets."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edbatch.http.json_limits import check_json_text
from edbatch.http.limits import Limits
from edbatch.http.refusal import Refusal

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('[]{}"\\a') | st.just(0.5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text('[{"\\'), inner, max_size=3)
    ),
    max_leaves=12,
)


def depth(value):
    if isinstance(value, dict):
        return 1 + max((depth(each) for each in value.values()), default=0)
    if isinstance(value, list):
        return 1 + max((depth(each) for each in value), default=0)
    return 0


@given(VALUES, st.booleans())
def test_the_depth_is_that_of_the_value(value, ascii_only):
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    check_json_text(text, max(1, depth(value)))
    if depth(value) > 1:
        with pytest.raises(Refusal, match=f"nested {depth(value)} deep"):
            check_json_text(text, depth(value) - 1)


@given(st.binary(max_size=60) | st.text('"\\[]{}NaN1e', max_size=60).map(str.encode))
def test_any_bytes_are_checked_without_another_error(body):
    try:
        check_json_text(body, 3)
    except Refusal as error:
        assert error.status == 400


@pytest.mark.parametrize(
    "number",
    [
        *("NaN", "-Infinity", "1e309", "-1E+999", "9" * 400),
        *("9" * 299 + "e10", "9" * 250 + ".5e99"),
    ],
)
def test_numbers_that_are_not_finite(number):
    with pytest.raises(Refusal, match="not finite") as caught:
        check_json_text(f'{{"a": [1, {number}]}}'.encode(), 9)
    assert caught.value.code == "number_out_of_range"


def test_brackets_in_another_encoding_are_none():
    """Their depth is not checked; Python's parser would guess the encoding."""
    body = ('["\u2200\u3165\u3031",' + "[" * 6000).encode("utf-16-le")
    check_json_text(body, 9)


@pytest.mark.parametrize(
    "text", ['"NaN 1e999"', "1e308", "1e-999", "0.0001e310", "9" * 299, '["1e999"]']
)
def test_numbers_and_strings_that_are_fine(text):
    check_json_text(text.encode(), 9)


@pytest.mark.parametrize(
    "body", [b'"\\' * 500_000, b'"' + b'\\"' * 500_000, b"[" * 10**6]
)
def test_time_is_linear_in_the_length(body):
    began = time.process_time()
    try:
        check_json_text(body, 128)
    except Refusal as error:
        assert error.code == "nested_too_deeply"
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"max_depth": 191}, "1 to 190"),
        ({"max_depth": 0}, "max_depth"),
        ({"max_body_bytes": 0}, "max_body_bytes"),
        ({"deadline_ms": -1}, "deadline_ms"),
    ],
)
def test_limits_are_checked(limits, text):
    with pytest.raises(ValueError, match=text):
        Limits(**limits)


@pytest.mark.parametrize("text", [b"%b", b"1,%b", b"a%b", b"-%b", b"1.5,%b.5,2"])
def test_numbers_of_299_digits_are_the_longest(text):
    """Also after other numbers: digits are counted from the start of each number."""
    check_json_text(b"[%b]" % (text % (b"1" * 299)), 5)
    if text != b"a%b":  # not JSON, which the parser reports later
        with pytest.raises(Refusal, match="not finite"):
            check_json_text(b"[%b]" % (text % (b"9" * 400)), 5)
