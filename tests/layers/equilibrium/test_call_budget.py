"""`layer(inputs, max_iter=..., tol=...)`: the budget of one call."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras.layers import DEQ, SolveScope
from deq_keras.solvers import SolveRequest
from tests.layers.cells import TanhCell

INPUTS = np.linspace(-1, 1, 12, dtype="float32").reshape(4, 3)


def _deq(gradient="implicit", **kwargs):
    kwargs = {"solver": "fixed_point_iteration", "seed": 1, **kwargs}
    deq = DEQ(TanhCell(5, scale=0.9), gradient=gradient, name="deq", **kwargs)
    deq.build((None, 3))
    return deq


def _value(deq, max_iter, tol=0.0):
    return deq.solve(INPUTS, SolveRequest(max_iter=max_iter, tol=tol)).value


def test_the_call_wins_over_the_scope_and_the_scope_over_the_solver():
    deq = _deq()
    with SolveScope(deq, max_iter=5, tol=0.0) as scope:
        deq(INPUTS)
        deq(INPUTS, max_iter=2)
        deq(INPUTS, tol=0.9)
    counts = [scope.solutions[name].num_evaluations for name in scope.solutions]
    np.testing.assert_array_equal(counts[0], 5)
    np.testing.assert_array_equal(counts[1], 2)
    assert np.mean(counts[2]) < 5
    value = deq(INPUTS, max_iter=3, tol=0.0)
    np.testing.assert_array_equal(value, _value(deq, 3))
    assert np.any(value != deq(INPUTS))
    np.testing.assert_array_equal(deq(INPUTS), _value(deq, 30, 1e-3))


def test_a_budget_may_exceed_that_of_the_solver():
    deq = _deq(solver={"class_name": "anderson", "max_iter": 2, "tol": None})
    value = deq(INPUTS, max_iter=40, tol=1e-6)
    np.testing.assert_allclose(value, deq.problem(INPUTS)(value), atol=1e-4)


def test_a_keras_variable_is_a_budget():
    deq, budget = _deq(), keras.Variable(2, dtype="int32", trainable=False)
    call = tf.function(lambda: deq(INPUTS, max_iter=budget, tol=0.0))
    for max_iter in (2, 5):
        budget.assign(max_iter)
        expected = _value(deq, max_iter)
        np.testing.assert_array_equal(deq(INPUTS, max_iter=budget, tol=0.0), expected)
        np.testing.assert_allclose(call(), expected, atol=1e-6)


def test_tensors_need_no_new_trace():
    deq = _deq()
    traces = []

    @tf.function
    def call(inputs, max_iter, tol):
        traces.append(1)
        return deq(inputs, max_iter=max_iter, tol=tol)

    for max_iter in (1, 4, 40):
        value = call(tf.constant(INPUTS), tf.constant(max_iter), tf.constant(1e-6))
        np.testing.assert_allclose(value, _value(deq, max_iter, 1e-6), atol=1e-6)
    assert len(traces) == 1
    with SolveScope(deq, max_iter=3):
        value = call(tf.constant(INPUTS), tf.constant(1), tf.constant(0.0))
    np.testing.assert_allclose(value, _value(deq, 1), atol=1e-6)


def test_numbers_are_part_of_a_functional_model(tmp_path):
    deq = _deq()
    inputs = keras.Input((3,))
    model = keras.Model(inputs, deq(inputs, max_iter=3, tol=0.0))
    expected = _value(deq, 3)
    np.testing.assert_allclose(model.predict(INPUTS, verbose=0), expected, atol=1e-6)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(INPUTS), expected, atol=1e-6)
    model.compile("sgd", "mse")
    targets = np.zeros((4, 5))
    history = model.fit(
        INPUTS, targets, verbose=0, validation_data=(INPUTS, targets)
    ).history
    assert history["deq_evaluations"] == history["val_deq_evaluations"] == [3.0]


def test_a_budget_may_be_an_input_of_a_model():
    deq = _deq()
    inputs = keras.Input((3,))
    max_iter = keras.Input(batch_shape=(), dtype="int32")
    model = keras.Model([inputs, max_iter], deq(inputs, max_iter=max_iter, tol=0.0))
    for count in (1, 3):
        value = model([tf.constant(INPUTS), tf.constant(count)])
        np.testing.assert_allclose(value, _value(deq, count), atol=1e-6)


def test_training_uses_the_numbers_of_the_call():
    for gradient in ("truncated", "unrolled"):
        deq = _deq(
            gradient, solver={"class_name": "fixed_point_iteration", "tol": None}
        )
        twin = _deq(
            gradient,
            solver={"class_name": "fixed_point_iteration", "max_iter": 4, "tol": None},
        )
        value = deq(INPUTS, training=True, max_iter=4)
        np.testing.assert_allclose(value, twin(INPUTS, training=True), atol=1e-6)
        assert deq.solver.max_iter == 30
    # A call may have a smaller budget than the jitter.
    jittered = _deq(max_iter_jitter=5)
    jittered(INPUTS, training=True, max_iter=3)

    @tf.function
    def call(max_iter):
        return deq(tf.constant(INPUTS), training=True, max_iter=max_iter)

    with pytest.raises(ValueError, match="In training, `max_iter` must be a number"):
        call(tf.constant(3))


def test_a_mask_reaches_a_call_with_a_tensor_budget():
    deq = _deq()
    texts = np.ones((2, 4, 3), "float32")
    mask = np.array([[True, True, False, False], [True, True, True, False]])
    inputs = keras.layers.Masking()(texts * mask[..., None])
    for max_iter in (3, tf.constant(3)):
        value = deq(inputs, max_iter=max_iter)
        np.testing.assert_array_equal(np.any(value != 0, axis=-1), mask)


BAD = {
    "max_iter": [0, -1, 2.5, True, "many", tf.constant(0), tf.constant(1.5), [3]],
    "tol": [-0.1, float("nan"), "small", True, tf.constant([0.1]), tf.constant(-1.0)],
}


@pytest.mark.parametrize("name", BAD)
def test_bad_values_are_refused(name):
    deq = _deq()
    for value in BAD[name]:
        with pytest.raises(ValueError, match=f"`{name}` must be.*Received: {name}"):
            deq(INPUTS, **{name: value})
    function = tf.function(lambda value: deq(tf.constant(INPUTS), **{name: value}))
    wrong = tf.constant(0.5) if name == "max_iter" else tf.constant(1)
    with pytest.raises(ValueError, match=f"`{name}` must be an? (integer|float) or"):
        function(wrong)
    with pytest.raises(ValueError, match=r"scalar tensor.*shape \(2,\)"):
        function(tf.stack([wrong, wrong]))
