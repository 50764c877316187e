"""A penalty whose weight follows a measurement."""

import keras
import numpy as np
import pytest

from deq_keras import callbacks, layers, solvers


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


def test_layers_of_one_name_follow_their_own_residuals():
    deqs = []
    model = keras.Sequential([keras.Input((4,))])
    solver = solvers.FixedPointIteration(4, tol=None)
    for seed in (0, 1):
        cell = layers.DenseCell(4, seed=seed)
        deq = layers.DEQ(cell, solver, "unrolled", "jacobian", name="deq")
        deqs.append(deq)
        model.add(keras.Sequential([keras.Input((4,)), deq]))
    model.compile(keras.optimizers.SGD(0.0), "mse")
    x = np.ones((8, 4), "float32")
    targets = [callbacks.PenaltyTarget(deq, target=1e-9) for deq in deqs]
    logs = model.fit(x, x, epochs=2, verbose=0, callbacks=targets).history
    assert logs["deq_penalty_factor"] == logs["deq_2_penalty_factor"] == [1.0, 4.0]
    ratio = logs["deq_residual"][0] / logs["deq_2_residual"][0]
    assert abs(ratio - 1.0) > 0.1
    deqs[1].penalty_factor = 1.0
    target = callbacks.PenaltyTarget(deqs[1], logs["deq_2_residual"][0] * ratio**0.5)
    model.fit(x, x, verbose=0, callbacks=[target])
    assert (deqs[1].penalty_factor > 1.0) == (ratio < 1.0)


def test_a_model_stands_for_its_layer():
    model, deq = _model()
    assert callbacks.PenaltyTarget(model, 1.0).layer is deq
