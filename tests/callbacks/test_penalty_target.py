"""A penalty whose weight follows a measurement."""

import keras
import numpy as np
import pytest

from deq_keras import callbacks, layers


def _model(regularizer="jacobian"):
    deq = layers.DEQ(layers.DenseCell(3), regularizer=regularizer, seed=0, name="deq")
    model = keras.Sequential([keras.Input((4,)), deq, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1e-4), "mse", run_eagerly=True)
    return model, deq


def _fit(model, callback, epochs=3):
    x = np.ones((8, 4), "float32")
    fit = model.fit(x, x[:, :1], epochs=epochs, verbose=0, callbacks=[callback])
    return fit.history["deq_penalty_factor"]


@pytest.mark.parametrize(
    "target, factors", [(1e-9, [1.0, 4.0, 10.0]), (1e9, [1.0, 0.25, 0.1])]
)
def test_factor_follows_the_residual_within_its_bounds(target, factors, tmp_path):
    model, deq = _model()
    callback = callbacks.PenaltyTarget(deq, target, max_factor=10.0)
    np.testing.assert_allclose(_fit(model, callback), factors)
    penalties = model.history.history["deq_penalty"]
    np.testing.assert_allclose(penalties[1] / penalties[0], factors[1], rtol=0.5)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras").get_layer("deq")
    assert deq.penalty_factor == loaded.penalty_factor != 1.0


def test_factor_keeps_its_value_without_a_finite_metric():
    _, deq = _model()
    callback = callbacks.PenaltyTarget(deq, 0.1, monitor="loss")
    callback.on_epoch_end(0, {"loss": float("nan")})
    assert deq.penalty_factor == 1.0


def test_bad_arguments_raise():
    for callback in (callbacks.PenaltyTarget, callbacks.RegularizerSchedule):
        with pytest.raises(ValueError, match="regularizer.*Received"):
            callback(_model(None)[1], 0.1)
    callback = callbacks.PenaltyTarget(_model()[1], 0.1, monitor="f1")
    with pytest.raises(ValueError, match="`monitor`.*Received"):
        callback.on_epoch_end(0, {"loss": 1.0})
