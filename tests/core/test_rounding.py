"""Which tolerances the arithmetic of a device hides."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import diagnostics, layers, solvers, tuning
from deq_keras.core import rounding
from tests.layers.cells import FunctionCell
from tests.regimes import slow


@pytest.fixture
def gpu(monkeypatch):
    """Pretends that there is a GPU of the compute capability that it returns."""
    details = {"compute_capability": (9, 0)}
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind])
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda _: details)
    was_enabled = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(True)
    yield details
    tf.config.experimental.enable_tensor_float_32_execution(was_enabled)


def _layer(tol, dtype="float32"):
    return layers.DEQ(layers.DenseCell(3, dtype=dtype), solvers.Anderson(30, tol))


def test_tolerance_below_tensor_float_32_warns(gpu):
    with pytest.warns(UserWarning, match="TensorFloat-32.*tol=2e-04.*tol=1e-05"):
        _layer(1e-5)
    # Names choose a tolerance above rounding.
    assert layers.DEQ(layers.DenseCell(3), "anderson").solver.tol == 1e-3


@pytest.mark.parametrize("case", ["loose", "off", "old", "wide"])
def test_tolerance_within_reach(gpu, case):
    if case == "off":
        tf.config.experimental.enable_tensor_float_32_execution(False)
    elif case == "old":
        gpu["compute_capability"] = (7, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _layer(1e-3 if case == "loose" else 1e-5, "float64" if case == "wide" else None)


def test_default_tolerance_is_within_reach(gpu):
    cell = layers.DenseCell(3)
    cell.default_solver = {"class_name": "Anderson", "config": {"tol": 1e-5}}
    assert layers.DEQ(cell, gradient="neumann").solver.tol == 2**-12
    gpu["compute_capability"] = (7, 0)
    assert layers.DEQ(cell, gradient="neumann").solver.tol == 1e-5


def _is_tensor_float_32():
    return tf.config.experimental.tensor_float_32_execution_enabled()


def test_scope_of_full_float32(gpu):
    with rounding.full_float32():
        assert not _is_tensor_float_32()
        assert not rounding.has_tensor_float_32([tf.float32])
        with rounding.full_float32():
            pass
        assert not _is_tensor_float_32()
    with pytest.raises(KeyError), rounding.full_float32():
        raise KeyError
    assert _is_tensor_float_32()

    @tf.function
    def traced():
        with rounding.full_float32():
            assert _is_tensor_float_32()

    traced()


@pytest.mark.parametrize("measurement", ["radius", slow("tune")])
def test_measurements_compute_in_float32(gpu, measurement):
    settings = []

    def function(z, u):
        settings.append(_is_tensor_float_32())
        return 0.5 * tf.tanh(z) + u

    deq = layers.DEQ(FunctionCell(function), solvers.FixedPointIteration(20))
    inputs = np.random.RandomState(0).normal(size=(40, 3)).astype("float32")
    model = keras.Sequential([keras.Input((3,)), deq])
    assert all(settings)
    settings.clear()
    if measurement == "radius":
        diagnostics.spectral_radius(deq, inputs)
    else:
        tuning.tune(model, inputs, 0.2, predict=lambda state: state > 0)
    assert settings and not any(settings)
    assert _is_tensor_float_32()
