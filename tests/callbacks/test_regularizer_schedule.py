"""The weight and the probability of a penalty follow the training step."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import callbacks, layers, regularizers, solvers
from tests.regimes import slow

RANDOM = np.random.RandomState(0)
INPUTS = RANDOM.normal(size=(8, 3)).astype("float32")


def _model(regularizer="jacobian", **options):
    solver = solvers.FixedPointIteration(max_iter=4, tol=None)
    cell = layers.DenseCell(4)
    deq = layers.DEQ(cell, solver, "phantom", regularizer, seed=0, name="deq")
    model = keras.Sequential([keras.Input((3,)), deq, keras.layers.Dense(1)])
    # Constant weights: only the schedule changes the penalty.
    model.compile(keras.optimizers.SGD(0.0), "mse", **options)
    return model, deq


def _fit(model, *schedules, epochs=3):
    """One step in an epoch."""
    return model.fit(
        INPUTS, INPUTS[:, :1], 8, epochs, verbose=0, callbacks=list(schedules)
    ).history


@pytest.mark.parametrize("mode", ["run_eagerly", slow("jit_compile")])
def test_factor_multiplies_the_penalty_of_each_step(mode):
    options = {mode: True}
    model, deq = _model(**options)
    reference, _ = _model(**options)
    reference.set_weights(model.get_weights())
    plain = _fit(reference)["deq_penalty"]
    schedule = callbacks.RegularizerSchedule(deq, factor=lambda step: 0.5 + step)
    history = _fit(model, schedule)
    # The first step has the number 0.
    assert history["deq_penalty_factor"] == [0.5, 1.5, 2.5]
    expected = np.multiply(plain, [0.5, 1.5, 2.5])
    np.testing.assert_allclose(history["deq_penalty"], expected, rtol=1e-5)


def test_training_step_is_traced_once():
    traces = []

    @keras.saving.register_keras_serializable("tests")
    class Counted(regularizers.JacobianRegularizer):
        def penalty(self, linearization, seed):
            traces.append(seed)
            return super().penalty(linearization, seed)

    model, deq = _model(Counted())
    rising = keras.optimizers.schedules.PolynomialDecay(0.1, 5, 1.0)
    _fit(model, callbacks.RegularizerSchedule(deq, rising, rising), epochs=1)
    count = len(traces)
    assert count > 0
    history = _fit(model, callbacks.RegularizerSchedule(deq, rising, rising), epochs=4)
    assert len(traces) == count
    np.testing.assert_allclose(history["deq_penalty_factor"][-1], 0.1 + 0.9 * 4 / 5)


def test_probability_of_a_penalty():
    model, deq = _model()

    def fraction(step):
        return tf.where(step < 2, 0.0, tf.where(step < 14, 0.5, 1.0))

    schedule = callbacks.RegularizerSchedule(deq, probability=fraction)
    penalties = np.array(_fit(model, schedule, epochs=16)["deq_penalty"])
    assert not penalties[:2].any()
    assert 2 < np.count_nonzero(penalties[2:14]) < 10
    assert penalties[14:].all()


def test_files_keep_the_factor_and_not_the_schedule(tmp_path):
    model, deq = _model(run_eagerly=True)
    _fit(model, callbacks.RegularizerSchedule(deq, lambda step: 3.0, lambda step: 0.5))
    assert (deq.penalty_factor, deq.penalty_probability) == (3.0, 0.5)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras").get_layer("deq")
    assert loaded.penalty_factor == 3.0 and loaded.penalty_probability is None
    assert loaded.regularizer.probability == 1.0
    deq.penalty_probability = None
    assert deq.penalty_probability is None


@pytest.mark.parametrize("name, value", [("factor", -1.0), ("probability", 1.5)])
def test_values_out_of_range_raise(name, value):
    model, deq = _model()
    schedule = callbacks.RegularizerSchedule(deq, **{name: lambda step: value})
    with pytest.raises(ValueError, match=f"`penalty_{name}`.*{value}"):
        _fit(model, schedule)


def test_several_steps_per_execution_raise():
    model, deq = _model(steps_per_execution=8)
    schedule = callbacks.RegularizerSchedule(deq, factor=float)
    with pytest.raises(ValueError, match="steps_per_execution=1.*Received.*=8"):
        _fit(model, schedule)


def test_functions_of_numbers_in_a_strategy():
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model, _ = _model()
    schedule = callbacks.RegularizerSchedule(model.layers[0], lambda i: float(i) + 1)
    assert _fit(model, schedule)["deq_penalty_factor"] == [1.0, 2.0, 3.0]
