"""Multipliers against closed forms."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import regularizers
from deq_keras.core.linearization import linearize

SEED = tf.constant([3, 4])


def _outcome(constraint, function, point):
    """Returns the penalty, the number of measurements, and what 2 is followed by."""
    linearization = linearize(function, tf.constant(point, tf.float64))
    penalty, total, count = constraint.measured_penalty(linearization, SEED)
    return penalty, count, constraint.next_multiplier(tf.constant(2.0), total, count)


def _residuals(*residuals):
    """A function whose value is 1, and the points with these relative residuals."""
    return lambda z: tf.ones_like(z), [[1.0 - residual] for residual in residuals]


def test_a_residual_above_its_target_raises_the_multiplier(regime):
    constraint = regularizers.ResidualConstraint(target=0.1, rate=0.5)
    outcome = regime(lambda: _outcome(constraint, *_residuals(0.1, 0.2)))
    penalty, count, following = outcome()
    mean = (0.1**2 + 0.2**2) / 2
    np.testing.assert_allclose(penalty, 3.0 * mean, rtol=1e-6)
    assert count == 2
    np.testing.assert_allclose(following, 2.0 * (mean / 0.01) ** 0.25, rtol=1e-6)


@pytest.mark.parametrize(
    "residuals, expected",
    [
        ((0.2,), 2.0),  # The target.
        ((0.1,), 1.0),  # Half the target.
        ((0.02,), 0.5),  # One step changes it by the factor 4^rate at most,
        ((0.9,), 8.0),
        ((1e-3,) * 9, 0.5),
        ((0.4, 0.0, 0.0), 4.0),  # A sample of residual zero is left out,
        ((0.4, np.nan), 4.0),  # and so is one that is not finite.
        ((0.0, 0.0), 2.0),  # Nothing is measured.
    ],
)
def test_the_next_multiplier(residuals, expected):
    constraint = regularizers.ResidualConstraint(target=0.2, rate=1.0)
    *_, following = _outcome(constraint, *_residuals(*residuals))
    np.testing.assert_allclose(following, expected, rtol=1e-6)


@pytest.mark.parametrize("residual, expected", [(0.9, 5.0), (0.01, 0.2)])
def test_the_multiplier_has_bounds(residual, expected):
    constraint = regularizers.ResidualConstraint(0.1, rate=5.0, max_multiplier=5.0)
    *_, following = _outcome(constraint, *_residuals(residual))
    np.testing.assert_allclose(following, expected, rtol=1e-6)


@pytest.mark.parametrize("radius", [0.45, 1.8])
def test_the_spectral_radius_is_measured(radius):
    constraint = regularizers.SpectralRadiusConstraint(
        target=0.9, num_iterations=30, rate=1.0
    )
    jacobian = tf.constant(np.diag([radius, -0.2, 0.1, 0.05]))
    _, count, following = _outcome(
        constraint, lambda z: tf.matmul(z, jacobian), np.ones((3, 4))
    )
    assert count == 3
    np.testing.assert_allclose(following, 2.0 * radius / 0.9, rtol=1e-6)


def test_the_penalty_is_that_of_the_regularizer():
    contraction = regularizers.ContractionRegularizer(residual_margin=0.0)
    constraint = regularizers.ResidualConstraint(0.5, contraction)
    function, point = _residuals(0.1, 0.3)
    penalty, *_ = _outcome(constraint, function, point)
    linearization = linearize(function, tf.constant(point, tf.float64))
    np.testing.assert_allclose(penalty, contraction(linearization, SEED), rtol=1e-12)
    np.testing.assert_allclose(penalty, constraint(linearization, SEED), rtol=1e-12)


def test_steps_that_are_not_drawn_have_neither_penalty_nor_measurement():
    constraint = regularizers.ResidualConstraint(0.1, rate=1.0, probability=0.5)
    function, point = _residuals(0.2)
    linearization = linearize(function, tf.constant(point))
    counts = []
    for i in range(40):
        penalty, total, count = constraint.measured_penalty(
            linearization, tf.constant([i, 0])
        )
        assert (penalty > 0) == (total > 0) == (count > 0)
        counts.append(int(count))
    assert 10 < sum(counts) < 30


def test_a_constraint_of_a_constraint_is_refused():
    with pytest.raises(ValueError, match="plain penalty"):
        regularizers.ResidualConstraint(
            regularizer=regularizers.SpectralRadiusConstraint()
        )
