"""A layer whose solver lets samples leave that are done."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from deq_keras import layers, solvers
from tests.layers.cells import HidingCell, TanhCell, TwoScaleCell
from tests.regimes import slow

RANDOM = np.random.RandomState(0)
VECTORS = RANDOM.normal(size=(5, 4)).astype("float32")
VECTORS[1] *= 30.0  # Saturated: done at once.
SEQUENCES = RANDOM.normal(size=(5, 6, 8)).astype("float32")
IMAGES = RANDOM.normal(size=(5, 4, 4, 8)).astype("float32")
CASES = {
    "vector": (lambda: TanhCell(4, scale=0.9), VECTORS),
    "nest": (lambda: TwoScaleCell(3), {"x": VECTORS, "y": VECTORS}),
    "transformer": (lambda: layers.TransformerCell(8, 2, 16), SEQUENCES),
    "image": (lambda: layers.ResidualBlockCell(8, expansion=1), IMAGES),
    "multiscale": (lambda: layers.MultiscaleCell((8, 8), expansion=1), IMAGES),
}


def _pair(make_cell, inputs, **arguments):
    """Two layers of the same weights, the second of which lets samples leave."""
    pair = []
    for compact in (False, True):
        solver = solvers.Anderson(max_iter=12, tol=1e-3, compact=compact)
        pair.append(layers.DEQ(make_cell(), solver, name="deq", **arguments))
        pair[-1](inputs)
    pair[1].set_weights(pair[0].get_weights())
    return pair


@pytest.mark.parametrize(
    "name, wrap",
    [
        ("vector", lambda function: function),
        slow("transformer", tf.function),
        slow("nest", lambda function: function),
        slow("image", tf.function),
        slow("multiscale", tf.function),
    ],
)
def test_answers_are_the_same(name, wrap):
    make_cell, inputs = CASES[name]
    masked, compact = _pair(make_cell, inputs)
    one, two = wrap(masked.solve)(inputs), wrap(compact.solve)(inputs)
    np.testing.assert_array_equal(one.num_evaluations, two.num_evaluations)
    np.testing.assert_array_equal(one.status, two.status)
    for first, second in zip(
        keras.tree.flatten((one.value, masked(inputs))),
        keras.tree.flatten((two.value, compact(inputs))),
        strict=True,
    ):
        np.testing.assert_allclose(first, second, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("gradient", ["truncated", "implicit", "unrolled"])
def test_in_a_model(gradient, tmp_path):
    """Fit, predict, save, export; training keeps the batch together."""
    inputs = np.resize(VECTORS, (8, 4))
    solver = solvers.Anderson(max_iter=12, compact=True)
    deq = layers.DEQ(TanhCell(4, scale=0.9), solver, gradient, name="deq", seed=1)
    model = keras.Sequential([keras.Input((4,)), deq, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(inputs, inputs[:, :1], batch_size=4, verbose=0)
    predicted = model.predict(inputs, batch_size=3, verbose=0)
    evaluated = model.evaluate(inputs, inputs[:, :1], return_dict=True, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.get_layer("deq").solver.compact is True
    np.testing.assert_allclose(loaded.predict(inputs, verbose=0), predicted, atol=1e-5)
    model.export(tmp_path / "exported", verbose=False)
    served = tf.saved_model.load(tmp_path / "exported")
    for rows in (1, 5, 8):
        np.testing.assert_allclose(
            served.serve(inputs[:rows]), predicted[:rows], atol=1e-5
        )
    deq.solver = solvers.Anderson(max_iter=12)
    model.compile("sgd", "mse")
    np.testing.assert_allclose(predicted, model.predict(inputs, verbose=0), atol=1e-5)
    again = model.evaluate(inputs, inputs[:, :1], return_dict=True, verbose=0)
    assert again == pytest.approx(evaluated, rel=1e-4)


def test_gradients_outside_of_training():
    masked, compact = _pair(lambda: TanhCell(4, scale=0.9), VECTORS)
    slopes = []
    for deq in (masked, compact):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(deq(VECTORS) ** 2)
        slopes.append(tape.gradient(loss, [v.value for v in deq.trainable_weights]))
    for one, two in zip(*slopes, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)


def test_padding_and_failing_samples():
    inputs = SEQUENCES[:, :, :4].copy()
    inputs[2, 0, 0] = np.nan
    mask = np.arange(6) < np.array([[6], [2], [6], [1], [4]])
    masked, compact = _pair(lambda: TanhCell(4, scale=0.9), inputs)
    one, two = (deq.solve(inputs, mask=mask) for deq in (masked, compact))
    np.testing.assert_array_equal(one.status, two.status)
    np.testing.assert_array_equal(one.num_evaluations, two.num_evaluations)
    np.testing.assert_allclose(one.value, two.value, atol=1e-6)


def test_an_injection_whose_rows_nobody_knows_is_refused():
    deq = layers.DEQ(HidingCell(4), solvers.Anderson(compact=True))

    @tf.function(input_signature=[tf.TensorSpec((None, None, 4))])
    def call(inputs):
        return deq(inputs)

    with pytest.raises(ValueError, match="which tensors of the injection"):
        call(SEQUENCES[:, :, :4])


class PositionsCell(TanhCell):
    """Has an injection with one row per position, not per sample."""

    def inject(self, inputs, training=False):
        return {
            "inputs": self.projection(inputs),
            "rows": 0.1 * ops.reshape(inputs, (-1, 1)),
        }

    def initial_state(self, injection):
        return ops.zeros_like(injection["inputs"])

    def call(self, state, injection):
        shift = ops.reshape(injection["rows"], (-1, self.units))
        return super().call(state, injection["inputs"] + shift)


def test_an_injection_with_several_rows_per_sample_is_refused():
    deq = layers.DEQ(PositionsCell(4), solvers.Anderson())
    deq(VECTORS)
    deq.solver = solvers.Anderson(compact=True)
    with pytest.raises(ValueError, match="one row per sample.*'rows': 'unknown'"):
        deq(VECTORS)


def test_keras_leaves_out_xla():
    deq = layers.DEQ(TanhCell(4), solvers.Anderson(compact=True))
    model = keras.Sequential([keras.Input((4,)), deq])
    with pytest.warns(UserWarning, match="doesn't support `jit_compile=True`"):
        model.compile("sgd", "mse", jit_compile=True)
    assert model.predict(VECTORS, verbose=0).shape == (5, 4)
    deq.solver = solvers.Anderson()
    model.compile("sgd", "mse", jit_compile=True)
    assert model.jit_compile
