"""Penalties of states in half precision; `check_regularizer` compares dtypes."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras.core.linearization import linearize
from deq_keras.regularizers import (
    ContractionRegularizer,
    JacobianRegularizer,
    ResidualRegularizer,
)

SEED = tf.constant([3, 4])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "regularizer, expected, tolerance",
    [
        (JacobianRegularizer(num_probes=30), 0.25, 0.2),
        # The growth is 1/4, and |z / 2 - z| / |z / 2| = 1.
        (ContractionRegularizer(1.0, 0.0, 1.0, residual_margin=0.0), 0.25 + 1.0, 1e-2),
        (ResidualRegularizer(), 3.0 * (1 - 1e-4), 1e-6),
    ],
)
def test_sums_are_in_float32(regularizer, expected, tolerance, dtype):
    linearization = linearize(lambda z: 0.5 * z, tf.ones((4, 8), dtype))
    loss = regularizer(linearization, SEED)
    np.testing.assert_allclose(loss, expected, rtol=tolerance)
    sometimes = type(regularizer)(probability=0.5)(linearization, SEED)
    assert loss.dtype == sometimes.dtype == "float32"
