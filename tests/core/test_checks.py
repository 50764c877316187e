"""Every kind of argument has one rule, and returns plain Python objects."""

import json

import numpy as np
import pytest

from deq_keras.core.checks import (
    check_boolean,
    check_choice,
    check_count,
    check_counts,
    check_integer,
    check_non_negative,
    check_optional_count,
    check_positive,
    check_positive_fraction,
    check_rate,
    check_seed,
)


@pytest.mark.parametrize(
    ("check", "values"),
    [
        (check_count, [1, 8, np.int64(8), 10**30]),
        (check_optional_count, [None, 1, np.int64(8)]),
        (check_integer, [-1, 0, np.int32(3)]),
        (check_seed, [None, 0, -4, np.uint8(7)]),
        (check_positive_fraction, [1, 0.25, np.float32(0.5)]),
        (check_rate, [0, 0.25, np.float64(0.5)]),
        (check_non_negative, [0, 2, 0.5, np.float32(0.5)]),
        (check_positive, [1, 1e-12, np.int64(2)]),
        (check_boolean, [True, False, np.bool_(True)]),
    ],
)
def test_returns_the_same_value_as_plain_python(check, values):
    for value in values:
        checked = check("argument", value)
        assert checked == value
        assert type(checked) in (int, float, bool, type(None))
        json.dumps(checked)


@pytest.mark.parametrize(
    ("check", "expected", "values"),
    [
        (check_count, "a positive integer", [0, -1, True, 1.0, "1", None]),
        (check_optional_count, "a positive integer or None", [0, True, 1.0, "1"]),
        (check_integer, "an integer", [True, 1.0, None]),
        (check_seed, "an integer or None", [True, 1.5, "0"]),
        (check_positive_fraction, "a number in", [0, 1.1, np.nan, True, "1", None]),
        (check_rate, "a number in", [1, -0.1, np.nan, False, "0", None]),
        (check_non_negative, "a finite number", [-1, np.inf, np.nan, True]),
        (check_non_negative, "a finite number", [10**400, "0", None, 1j]),
        (check_positive, "a finite number", [0, -1, np.inf, np.nan, True]),
        (check_boolean, "True or False", [0, 1, "true", None, np.int8(1)]),
    ],
)
def test_names_what_was_expected_and_received(check, expected, values):
    for value in values:
        with pytest.raises(ValueError) as error:
            check("argument", value)
        assert f"`argument` must be {expected}" in str(error.value)
        assert f"Received: argument={value!r}." in str(error.value)


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({"minimum": 5}, "an integer >= 5."),
        ({"maximum": 3}, "an integer <= 3."),
        ({"minimum": 1, "maximum": 3}, "an integer from 1 to 3."),
        ({"minimum": 5, "maximum": 9}, "an integer from 5 to 9."),
    ],
)
def test_an_integer_has_the_bounds_that_are_asked_for(bounds, expected):
    for bound in bounds.values():
        assert check_integer("argument", bound, **bounds) == bound
    with pytest.raises(ValueError, match=f"{expected} Received: argument=4."):
        check_integer("argument", 4, **bounds)


def test_counts_are_a_tuple():
    assert check_counts("argument", [np.int64(8), 1]) == (8, 1)
    json.dumps(check_counts("argument", (np.int64(8),)))
    assert check_counts("argument", [], allow_empty=True) == ()
    for wrong in ((), (8, 0), (8, True), (8, 1.0), 8, "88", None):
        with pytest.raises(ValueError) as error:
            check_counts("argument", wrong)
        assert "`argument` must be a tuple of positive integers" in str(error.value)
        assert f"Received: argument={wrong!r}." in str(error.value)


def test_a_choice_is_one_of_the_names():
    assert check_choice("mode", "absolute", ("relative", "absolute")) == ("absolute")
    for value in ("relativ", None, ["relative"]):
        with pytest.raises(ValueError) as error:
            check_choice("mode", value, ("relative", "absolute"))
        message = str(error.value)
        assert f"Received: mode={value!r}." in message
        assert "one of 'relative', 'absolute'" in message
        assert ("Did you mean 'relative'?" in message) == (value is not None)
