"""XLA compiles training steps of cells that copy, gather or transpose entries."""

import keras
import numpy as np
import pytest
from keras import ops

from deq_keras.gradients import PhantomGradient
from deq_keras.layers import DEQ, cell_from
from deq_keras.solvers import FixedPointIteration
from tests.regimes import slow


@keras.saving.register_keras_serializable(package="tests")
class Copies(keras.layers.Layer):
    """Repeats, tiles, broadcasts and gathers along the positions of a sequence."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], shape[-1]), name="kernel")
        self.built = True

    def call(self, inputs):
        repeated = ops.repeat(inputs[:, ::2], 2, axis=1)
        mean = ops.mean(inputs, axis=1, keepdims=True)
        tiled = ops.tile(mean, (1, inputs.shape[1], 1))
        # Broadcasts both arguments, and gathers.
        order = ops.argsort(inputs, axis=1)
        gathered = ops.take_along_axis(inputs, order, axis=1)
        return 0.3 * ops.tanh((repeated + tiled + gathered) @ self.kernel)


def resizing():
    return keras.Sequential(
        [
            keras.layers.Conv2D(2, 3, strides=2, padding="same"),
            keras.layers.UpSampling2D(2),
            keras.layers.Dense(2, activation="tanh"),
        ]
    )


@pytest.mark.parametrize(
    "make_layer, shape, gradient, regularizer, num_samples",
    [
        (Copies, (4, 3), PhantomGradient(1), None, 2),
        slow(Copies, (4, 3), "unrolled", "contraction", 5),
        slow(resizing, (4, 4, 2), "truncated", "auto", 5),
    ],
    ids=str,
)
def test_fit_equals_fit_without_xla(
    make_layer, shape, gradient, regularizer, num_samples
):
    # The batch size is unknown when the step is traced, and the last batch of five
    # samples is smaller.
    x = np.random.default_rng(0).normal(size=(num_samples, *shape)).astype("float32")
    y = np.ones((num_samples, 1), "float32")
    weights = []
    for mode in ({"run_eagerly": True}, {"jit_compile": True}):
        keras.utils.set_random_seed(0)
        cell = cell_from(make_layer())
        deq = DEQ(cell, FixedPointIteration(2), gradient, regularizer)
        head = [keras.layers.Flatten(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input(shape), deq, *head])
        model.compile("sgd", "mse", **mode)
        model.fit(x, y, batch_size=2, shuffle=False, verbose=0)
        weights.append(model.get_weights())
    for one, other in zip(*weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
