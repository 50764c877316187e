"""`MonitoredModel` predicts what its model predicts, and warns of failed solves."""

import warnings

import keras
import numpy as np
import pytest

from deq_keras import layers, models, solvers
from tests.layers.cells import FunctionCell
from tests.regimes import slow

# The cell expands the samples at which it is above 1, and z = u / (1 - slope) else.
SLOPES = np.array([0.5, 3.0, 0.5, 0.9, 0.25], "float32")
INPUTS = np.stack([SLOPES, np.ones(5, "float32")], axis=1)


def _model(max_iter=30):
    cell = FunctionCell(lambda z, u: u[:, :1] * z + u[:, 1:], lambda u: 0 * u[:, :1])
    solver = solvers.FixedPointIteration(max_iter, tol=1e-4)
    deq = layers.DEQ(cell, solver, "unrolled", None, name="deq")
    return keras.Sequential([keras.Input((2,)), deq])


@pytest.mark.parametrize("mode", ["predict", "eager", *map(slow, ["xla", "batch"])])
def test_warns_of_the_samples_that_expand(mode):
    model = _model()
    monitored = models.MonitoredModel(model)
    monitored.compile(jit_compile=mode == "xla")
    with pytest.warns(UserWarning, match="1 of 5 samples"):
        if mode == "eager":
            outputs = monitored(INPUTS)
        elif mode == "batch":
            outputs = monitored.predict_on_batch(INPUTS)
        else:
            outputs = monitored.predict(INPUTS, batch_size=2, verbose=0)
    np.testing.assert_allclose(outputs, model.predict(INPUTS, verbose=0), rtol=1e-6)
    solution = model.layers[0].solve(INPUTS)
    found = monitored.solves["deq"]
    np.testing.assert_array_equal(found["status"], solution.status)
    np.testing.assert_allclose(found["residual"], solution.residual, rtol=1e-4)
    assert found["residual"][1] > 0.6  # 1 - 1 / 3
    healthy = np.delete(INPUTS, 1, axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monitored.predict(healthy, verbose=0)
        monitored(healthy)


def test_every_layer_has_a_name():
    inputs = keras.Input((2,))
    one, other = _model(), _model(max_iter=1)
    model = keras.Model(inputs, one(inputs) + other(inputs))
    with pytest.warns(UserWarning, match="of 5 samples"):
        monitored = models.MonitoredModel(model)
        monitored.predict(INPUTS, verbose=0)
    assert set(monitored.solves) == {"deq", "deq_2"}
    with pytest.raises(ValueError, match="`model`"):
        models.MonitoredModel(keras.Sequential([keras.layers.Dense(1)]))
