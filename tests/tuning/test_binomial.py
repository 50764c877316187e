"""The Clopper-Pearson bound against closed forms and a table."""

import pytest

from deq_keras.tuning import Promise, upper_bound


@pytest.mark.parametrize("count", [1, 59, 1497])
def test_no_changes(count):
    assert upper_bound(0, count) == pytest.approx(1 - 0.05 ** (1 / count), rel=1e-9)
    assert upper_bound(count, count) == 1.0


def test_all_but_one():
    # P(X <= n - 1) = 1 - p^n.
    expected = 0.9 ** (1 / 7)
    assert upper_bound(6, 7, confidence=0.9) == pytest.approx(expected, rel=1e-9)


def test_a_value_of_tables():
    # The two-sided 95 % interval of 8 in 20 is (0.1912, 0.6395).
    assert upper_bound(8, 20, 0.975) == pytest.approx(0.6395, abs=5e-5)


def test_many_samples_do_not_underflow():
    # The normal approximation is close.
    expected = 0.5 + 1.6449 * 0.5 / 1e5**0.5
    assert upper_bound(50_000, 100_000) == pytest.approx(expected, abs=2e-5)


def test_the_samples_that_a_promise_needs():
    promise = Promise(0.002)
    assert promise.num_samples == 1497
    assert upper_bound(0, 1497) <= 0.002 < upper_bound(0, 1496)
