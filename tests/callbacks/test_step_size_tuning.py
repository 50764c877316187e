"""`StepSizeTuning` sets the step size with which the model predicts."""

import keras
import numpy as np
import pytest

from deq_keras.callbacks import (
    EquilibriumDiagnostics,
    EquilibriumSummaries,
    StepSizeTuning,
)
from deq_keras.layers import DEQ, DenseCell, MonotoneDenseCell
from deq_keras.solvers import ForwardBackward


class Halved(MonotoneDenseCell):
    """Halves the step size whenever it is tuned."""

    def tuned(self, solver, inputs):
        del inputs
        return solver.from_config({**solver.get_config(), "alpha": solver.alpha / 2})


def test_the_model_predicts_with_the_new_step_size():
    solver = ForwardBackward(1e-3, max_iter=40)
    layer = DEQ(Halved(4), solver, "phantom", None)
    model = keras.Sequential([keras.Input((3,)), layer, keras.layers.Dense(1)])
    model.compile("adam", "mse")
    x = np.ones((4, 3), "float32")
    model.predict(x, verbose=0)
    callback, logs = StepSizeTuning(layer, lambda: x), {}
    callback.set_model(model)
    callback.on_epoch_end(0, logs)
    assert layer.solver.alpha == logs[f"{layer.name}_alpha"] == 5e-4
    assert model.predict(x, verbose=0).shape == (4, 1)  # Raised an error.


def test_solver_without_a_step_size_raises():
    with pytest.raises(ValueError, match="solver.*Received"):
        StepSizeTuning(DEQ(DenseCell(3)), lambda: None)


def test_callbacks_that_measure_the_layer_follow(tmp_path):
    layer = DEQ(Halved(4), ForwardBackward(1e-2, max_iter=4), "phantom", None)
    model = keras.Sequential([keras.Input((3,)), layer, keras.layers.Dense(1)])
    model.compile("adam", "mse")
    x = np.ones((4, 3), "float32")
    measuring = [
        EquilibriumDiagnostics(model, x, num_iterations=2),
        EquilibriumSummaries(layer, lambda: x, tmp_path),
    ]
    tuning = StepSizeTuning(model, lambda: x)
    model.fit(x, x[:, :1], epochs=2, verbose=0, callbacks=[*measuring, tuning])
    assert layer.solver.alpha == 2.5e-3
