"""`layer(inputs, num_states=n)`: states along a solve, with gradients."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import gradients, solvers
from deq_keras.layers import DEQ, EquilibriumCell, SolveScope
from tests.layers.cells import TanhCell, TwoScaleCell

INPUTS = np.linspace(-1, 1, 12, dtype="float32").reshape(4, 3)
SLOPE = 0.5


class LinearCell(EquilibriumCell):
    """f(z, u) = a z + u."""

    def call(self, state, injection):
        return SLOPE * state + injection


def _linear(gradient, max_iter=6):
    return DEQ(
        LinearCell(dtype="float64"),
        solver=solvers.FixedPointIteration(max_iter=max_iter, tol=None),
        gradient=gradient,
        regularizer=None,
        seed=1,
    )


def _geometric(count):
    return (1 - SLOPE**count) / (1 - SLOPE)


# The derivative of each state, after 2, 4, and 6 evaluations of f.
ONE_STEP = [1.0, 1.0]
BY_STEPS = [_geometric(count) for count in (2, 4, 6)]
DERIVATIVES = {
    "phantom": (gradients.PhantomGradient(1, 1.0), [*ONE_STEP, 1.0]),
    "implicit": (gradients.ImplicitGradient("gmres"), [*ONE_STEP, 1 / (1 - SLOPE)]),
    "neumann": (gradients.NeumannGradient(2), [*ONE_STEP, _geometric(3)]),
    "unrolled": (gradients.UnrolledGradient(), BY_STEPS),
    "checkpoints": (gradients.UnrolledGradient(checkpoints=3), BY_STEPS),
    "truncated": (gradients.TruncatedGradient(6, free_fraction=0.0), BY_STEPS),
    "remat": (gradients.TruncatedGradient(6, 0, remat=True), BY_STEPS),
}


SLOW = {"checkpoints", "remat"}
# Powers that tell the derivatives of the states apart in their weighted sum.
COTANGENTS = [1.0, 100.0, 10000.0]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in SLOW else ())
        for name in DERIVATIVES
    ],
)
def test_states_and_gradients_in_closed_form(name):
    gradient, derivatives = DERIVATIVES[name]
    deq = _linear(gradient)
    inputs = tf.constant([[1.0], [-2.0]], tf.float64)

    def run(inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            states = deq(inputs, num_states=3, training=True)
            pairs = zip(COTANGENTS, states, strict=True)
            loss = tf.add_n([weight * state for weight, state in pairs])
        return states, tape.gradient(loss, inputs)

    states, slope = tf.function(run, autograph=False)(inputs)
    for state, count in zip(states, (2, 4, 6), strict=True):
        np.testing.assert_allclose(state, inputs * _geometric(count), rtol=1e-12)
    expected = np.dot(COTANGENTS, derivatives)
    np.testing.assert_allclose(slope, 0 * inputs + expected, rtol=1e-11)


def test_early_stop_of_truncated_steps_repeats_the_last_state():
    gradient = gradients.TruncatedGradient(12, 0, tol=1e-3)
    states = _linear(gradient)(np.ones((1, 1)), num_states=12, training=True)
    values = np.ravel(states)
    steps = 1 + int(np.argmax(values == values[-1]))
    assert 8 < steps < 12
    np.testing.assert_allclose(values[:steps], _geometric(np.arange(1, steps + 1)))


def test_inference_returns_shorter_solves():
    deq = DEQ(TanhCell(5, scale=0.9), solver=solvers.Anderson(9, 1e-6), seed=1)
    states = deq(INPUTS, num_states=3)
    for state, count in zip(states, (3, 6, 9), strict=True):
        np.testing.assert_array_equal(state, deq(INPUTS, max_iter=count))
    with SolveScope(max_iter=4, tol=0.0):
        short = deq(INPUTS, num_states=2)
    np.testing.assert_array_equal(short[0], deq(INPUTS, max_iter=2, tol=0.0))
    np.testing.assert_array_equal(short[1], deq(INPUTS, max_iter=4, tol=0.0))


def test_nests_fit_predict_and_save(tmp_path):
    arrays = {"x": INPUTS, "y": INPUTS[:, :2]}
    inputs = {"x": keras.Input((3,), name="x"), "y": keras.Input((2,), name="y")}
    deq = DEQ(
        TwoScaleCell(4),
        solver="fixed_point_iteration",
        gradient=gradients.PhantomGradient(1, 1.0),
        regularizer=None,
    )
    outputs = [state["vector"] for state in deq(inputs, num_states=2)]
    model = keras.Model(inputs, outputs)
    model.compile("sgd", ["mse"] * 2)
    targets = [np.ones((4, 4), "float32")] * 2
    before = deq.cell.mix.kernel.numpy()
    history = model.fit(arrays, targets, verbose=0).history
    assert np.isfinite(history["loss"][0])
    assert np.any(deq.cell.mix.kernel.numpy() != before)
    predictions = model.predict(arrays, verbose=0)
    for got, want in zip(predictions, model(arrays), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(arrays)[0], predictions[0], atol=1e-5)


@pytest.mark.parametrize("training", [False, True])
def test_masks(training):
    """All states carry the mask, and their padding is zero."""
    inputs = tf.constant(np.ones((2, 3, 3)), tf.float32)
    mask = tf.constant([[True, True, False], [True, False, False]])
    deq = DEQ(TanhCell(4), gradient="phantom", seed=1)
    for state in deq(inputs, mask=mask, num_states=2, training=training):
        np.testing.assert_array_equal(state._keras_mask, mask)
        np.testing.assert_array_equal(np.any(state, axis=-1), mask)


def test_a_sample_that_fails():
    inputs = INPUTS.copy()
    inputs[1] = np.nan
    deq = DEQ(TanhCell(5), gradient="implicit", regularizer=None, seed=1)
    with tf.GradientTape() as tape:
        states = deq(inputs, num_states=3, training=True)
        loss = tf.add_n([tf.reduce_sum(state) for state in states])
    for state in states:
        assert np.all(np.isfinite(state))
        assert not np.any(state[1])
    for gradient in tape.gradient(loss, deq.trainable_variables):
        assert np.all(np.isfinite(gradient))
    for state in deq(inputs, num_states=3):
        np.testing.assert_array_equal(np.isnan(state).any(axis=1), [0, 1, 0, 0])


def test_mixed_precision_and_a_drawn_budget():
    deq = DEQ(
        TanhCell(5, dtype="mixed_bfloat16"),
        solver=solvers.FixedPointIteration(max_iter=6, tol=None),
        gradient="phantom",
        max_iter_jitter=5,
        seed=1,
    )
    for state in deq(INPUTS, num_states=3, training=True):
        assert state.dtype == "bfloat16" and state.shape == (4, 5)


def test_errors():
    deq = _linear("phantom")
    inputs = np.ones((2, 1))
    for training in (False, True):
        with pytest.raises(ValueError, match="num_states <= 6.*num_states=7"):
            deq(inputs, num_states=7, training=training)
    with pytest.raises(ValueError, match="num_states=0"):
        deq(keras.Input((1,)), num_states=0)
    deq.gradient = gradients.TruncatedGradient([1.0, 1.0])
    with pytest.raises(ValueError, match="num_states <= 2.*num_states=3"):
        deq(inputs, num_states=3, training=True)
    deq.gradient = "reversible"
    with pytest.raises(ValueError, match="ReversibleGradient does not return states"):
        deq(inputs, num_states=2, training=True)
    assert len(deq(inputs, num_states=2)) == 2
