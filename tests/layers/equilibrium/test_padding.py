"""Padded positions do not change the results of a solve."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import layers, solvers
from tests.layers.cells import TanhCell
from tests.regimes import slow

RANDOM = np.random.RandomState(0)
TEXT = RANDOM.normal(size=(1, 5, 8)).astype("float32")
OTHER = RANDOM.normal(size=(1, 9, 8)).astype("float32")
SOLVERS = [
    {"class_name": "anderson", "max_iter": 40, "tol": 1e-4},
    {"class_name": "fixed_point_iteration", "max_iter": 60, "tol": 1e-4},
]


def _layer(solver=SOLVERS[0], **kwargs):
    cell = layers.TransformerCell(
        8, 2, 16, injection_initializer="glorot_uniform", seed=1
    )
    return layers.DEQ(cell, solver, **kwargs)


def _padded(left):
    """The short text beside the long one, padded with noise."""
    noise = 10 * RANDOM.normal(size=(1, 4, 8)).astype("float32")
    short = np.concatenate([noise, TEXT] if left else [TEXT, noise], axis=1)
    inputs = np.concatenate([short, OTHER])
    mask = np.ones((2, 9), bool)
    mask[0, :4] = not left
    mask[0, 5:] = left
    if left:
        mask[0, 4:] = True
    return inputs, mask


@pytest.mark.parametrize(
    "solver, left",
    [(SOLVERS[0], False), slow(SOLVERS[1], True)],
    ids=["anderson-right", "fixed_point_iteration-left"],
)
@pytest.mark.usefixtures("full_float32")
def test_results_are_those_of_the_text_alone(solver, left):
    deq = _layer(solver)
    inputs, mask = _padded(left)
    alone, padded = deq.solve(TEXT), deq.solve(inputs, mask=mask)
    value = padded.value[0][mask[0]]
    np.testing.assert_allclose(value, alone.value[0], atol=5e-4)
    assert padded.num_evaluations[0] == alone.num_evaluations[0]
    np.testing.assert_allclose(padded.residual[0], alone.residual[0], rtol=0.02)
    np.testing.assert_array_equal(padded.value[0][~mask[0]], 0)
    np.testing.assert_allclose(padded.value[1], deq.solve(OTHER).value[0], atol=5e-4)


@pytest.mark.parametrize("gradient", ["implicit", slow("unrolled")])
@pytest.mark.usefixtures("full_float32")
def test_gradients_are_those_of_the_text_alone(gradient):
    deq = _layer(gradient=gradient, regularizer=None)
    deq.build((None, None, 8))
    weights = [weight.value for weight in deq.trainable_weights]

    def gradients(inputs, mask):
        with tf.GradientTape() as tape:
            value = deq(inputs, mask=mask, training=True)
            # Values at padding are constants, without a gradient.
            loss = tf.reduce_sum(tf.sin(value))
        return tape.gradient(loss, weights)

    inputs, mask = _padded(left=False)
    expected = gradients(TEXT, np.ones((1, 5), bool))
    for one, two in zip(gradients(inputs[:1], mask[:1]), expected, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-4)


class PooledCell(TanhCell):
    """Its state is one vector for a whole sequence."""

    def inject(self, inputs, training=False):
        return self.projection(keras.ops.mean(inputs, axis=1))


class SummaryCell(layers.EquilibriumCell):
    """Two states of positions, behind one vector."""

    def inject(self, inputs, training=False):
        return inputs[0] + inputs[1]

    def initial_state(self, injection):
        return {
            "a": keras.ops.zeros_like(injection[:, 0]),
            "b": injection,
            "c": injection,
        }

    def call(self, state, injection):
        positions = keras.ops.tanh(0.3 * state["c"] + injection)
        return {"a": state["a"], "b": positions, "c": 0.5 * state["b"]}


def test_state_without_positions_has_no_mask():
    """Keras multiplies a loss by the mask of the outputs."""
    ids = np.array([[3, 4, 0], [1, 0, 0], [1, 2, 3]])  # (3 samples, 3 positions)
    embedding = keras.layers.Embedding(7, 4, mask_zero=True)
    model = keras.Sequential(
        [keras.Input((None,), dtype="int32"), embedding, layers.DEQ(PooledCell(5))]
    )
    model.compile("sgd", "mse", run_eagerly=True)
    outputs, targets = model.predict(ids, verbose=0), np.arange(3.0)[:, None]
    expected = np.mean((outputs - targets) ** 2)
    loss = model.evaluate(ids, targets, verbose=0, return_dict=True)["loss"]
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_each_state_with_positions_has_the_mask_of_any_input():
    ids = np.array([[3, 4, 0], [1, 2, 3]])
    first = keras.layers.Embedding(7, 4)
    second = keras.layers.Embedding(7, 4, mask_zero=True)
    state = layers.DEQ(SummaryCell())([first(ids), second(ids)])
    masks = {name: getattr(leaf, "_keras_mask", None) for name, leaf in state.items()}
    assert masks["a"] is None
    np.testing.assert_array_equal(masks["b"], ids > 0)
    np.testing.assert_array_equal(masks["c"], ids > 0)


class AttentionCell(layers.EquilibriumCell):
    """Ignores masks; the attention layer of Keras reads the mask of the state."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.attention = keras.layers.MultiHeadAttention(2, 4)
        self.norm = layers.LayerNormalization()

    def call(self, state, injection):
        return self.norm(0.3 * self.attention(state, state) + injection)


def test_state_carries_the_mask_for_layers_of_keras():
    deq = layers.DEQ(AttentionCell(), SOLVERS[1])
    inputs, mask = _padded(left=True)
    value = tf.function(deq, autograph=False)(inputs, mask=mask)
    np.testing.assert_allclose(value[0][mask[0]], deq(TEXT)[0], atol=1e-3)


def test_attached_mask_is_used_without_being_passed():
    ids = np.array([[3, 4, 0, 0], [1, 2, 3, 4]])
    inputs = keras.layers.Embedding(7, 3, mask_zero=True)(ids)
    mask, start = tf.constant(ids > 0), np.full((2, 4, 8), 0.5, "float32")
    deq = _layer(solvers.FixedPointIteration(3, tol=None))
    deq(inputs)
    for call in (
        lambda **kwargs: deq(inputs, initial_state=start, **kwargs),
        lambda **kwargs: deq.solve(inputs, **kwargs).value,
        lambda **kwargs: deq.problem(inputs, **kwargs)(tf.constant(start)),
    ):
        value = call()
        np.testing.assert_array_equal(value[0][2:], 0)
        np.testing.assert_array_equal(value, call(mask=mask))


def test_mask_of_another_shape_raises_when_a_graph_runs():
    """A graph of open shapes would broadcast a single row or position."""
    deq = layers.DEQ(TanhCell(4))
    inputs = np.ones((2, 5, 3), "float32")
    specs = [tf.TensorSpec((None, None, 3)), tf.TensorSpec((None, None), tf.bool)]
    call = tf.function(
        lambda x, mask: deq(x, mask=mask), input_signature=specs, autograph=False
    )
    assert call(inputs, np.ones((2, 5), bool)).shape == (2, 5, 4)
    for shape in ((1, 5), (2, 1), (1, 1), (2, 4)):
        with pytest.raises(tf.errors.InvalidArgumentError):
            call(inputs, np.ones(shape, bool))


def test_noise_of_a_solver_ignores_padding_at_inference():
    solver = solvers.FixedPointIteration(max_iter=3, tol=None, noise=0.1)
    deq = layers.DEQ(TanhCell(4), solver)
    inputs, mask = np.ones((2, 5, 3), "float32"), np.ones((2, 5), bool)
    deq(inputs, mask=mask, training=False)
    with pytest.raises(ValueError, match="noise"):
        deq.solve(inputs, solvers.SolveRequest(seed=1), mask=mask)
