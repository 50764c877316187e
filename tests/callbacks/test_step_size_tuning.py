import keras
import numpy as np
import pytest

from deq_keras.callbacks import StepSizeTuning
from deq_keras.layers import DEQ, DenseCell, MonotoneDenseCell
from deq_keras.solvers import ForwardBackward


@pytest.mark.slow  # The example of the callback is a fast one.
def test_the_step_size_follows_the_weights():
    layer = DEQ(MonotoneDenseCell(4), solver=ForwardBackward(1e-3, max_iter=40))
    model = keras.Sequential([keras.Input((3,)), layer, keras.layers.Dense(1)])
    model.compile("adam", "mse")
    x = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
    before = layer.solve(x)
    callback = StepSizeTuning(layer, lambda: x[:4])
    history = model.fit(x, x[:, :1], epochs=2, verbose=0, callbacks=[callback]).history
    assert layer.solver.alpha == history[f"{layer.name}_alpha"][-1] >= 0.1
    assert layer.solver.max_iter == 40
    # The second epoch was trained with it.
    evaluations = history[f"{layer.name}_evaluations"]
    assert evaluations[1] < evaluations[0]
    assert np.mean(layer.solve(x).residual) < np.mean(before.residual)


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
    callback = StepSizeTuning(layer, lambda: x)
    model.fit(x, x[:, :1], verbose=0, callbacks=[callback])
    assert layer.solver.alpha == 5e-4
    assert model.predict(x, verbose=0).shape == (4, 1)  # Raised an error.


def test_solver_without_a_step_size_raises():
    with pytest.raises(ValueError, match="solver.*Received"):
        StepSizeTuning(DEQ(DenseCell(3)), lambda: None)
