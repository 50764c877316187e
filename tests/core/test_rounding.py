"""Which tolerances the arithmetic of a device hides."""

import warnings

import pytest
import tensorflow as tf

from deq_keras import layers, solvers


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
    with pytest.warns(UserWarning, match="TensorFloat-32.*tol=1e-03.*tol=1e-05"):
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
