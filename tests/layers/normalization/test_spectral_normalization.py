"""`SpectralNormalization` bounds the norm of the linear map that a layer computes."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import deq_keras
from deq_keras.layers import SpectrallyNormalizedConv2D, SpectrallyNormalizedDense

CONVOLUTIONS = {
    "valid_dilated": {"dilation_rate": 2},
    "strided": {"padding": "same", "strides": 2},
    "grouped": {"groups": 2},
}


def _dense(kernel, max_norm=0.9, **arguments):
    kernel = np.asarray(kernel)
    layer = SpectrallyNormalizedDense(
        kernel.shape[1], max_norm=max_norm, dtype="float64", **arguments
    )
    layer.build((None, kernel.shape[0]))
    layer._kernel.assign(kernel)
    return layer


def _operator_norm(layer, kernel):
    """Largest singular value of the dense matrix of a convolution."""
    basis = np.eye(60).reshape(60, 6, 5, 2)
    image = np.reshape(layer.convolution_op(basis, kernel), (60, -1))
    return np.linalg.norm(image, 2)


def test_norm_of_a_diagonal_kernel_is_its_largest_entry():
    diagonal = np.array([0.5, -3.0, 2.0, 0.0])
    layer = _dense(np.diag(diagonal))
    np.testing.assert_allclose(layer.spectral_norm, 3.0, rtol=1e-14)
    np.testing.assert_allclose(layer.kernel, np.diag(diagonal) * 0.3, atol=1e-14)


@pytest.mark.parametrize("arguments", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_norm_of_a_convolution_is_that_of_its_dense_matrix(arguments):
    """For every kernel, in training and at inference."""
    arguments = {"max_norm": 0.9, "dtype": "float64", **arguments}
    layer = SpectrallyNormalizedConv2D(4, 3, **arguments)
    layer.build((None, 6, 5, 2))
    first = SpectrallyNormalizedConv2D(4, 3, data_format="channels_first", **arguments)
    first.build((None, 2, 6, 5))  # Keras can only call it on a GPU.
    shape, random = layer._kernel.shape, np.random.default_rng(0)
    for kernel in (
        random.normal(size=shape),
        np.ones(shape),
        1e20 * random.normal(size=shape),
        random.normal(size=shape) * np.exp(-np.arange(4.0)),
    ):
        layer._kernel.assign(kernel)
        norm = _operator_norm(layer, layer._kernel)
        np.testing.assert_allclose(layer.spectral_norm, norm, rtol=0.022)
        first._kernel.assign(kernel)
        np.testing.assert_allclose(first.spectral_norm, norm, rtol=0.022)
        for training in (False, True):
            actual = _operator_norm(layer, layer.normalized_kernel(training))
            assert 0.9 / 1.031 <= actual <= 0.9


def test_norm_of_a_convolution_whose_kernel_changes():
    """Training steps continue from the map of the previous step."""
    layer = SpectrallyNormalizedConv2D(4, 3, max_norm=0.9, dtype="float64")
    layer.build((None, 6, 5, 2))
    random = np.random.default_rng(0)
    kernel, change = random.normal(size=(2, *layer._kernel.shape))
    for angle in np.linspace(0, 2, 20):
        layer._kernel.assign(np.cos(angle) * kernel + np.sin(angle) * change)
        actual = _operator_norm(layer, layer.normalized_kernel(training=True))
        assert 0.9 / 1.031 <= actual <= 0.9 * 1.01
    assert len(layer.weights) == 2


@pytest.mark.parametrize("size", [(1, 1, 1), (2, 1, 3)])
@pytest.mark.usefixtures("full_float32")
def test_norm_of_a_convolution_of_few_pixels(size):
    """There are fewer singular values than steps of the Lanczos method."""
    layer = SpectrallyNormalizedConv2D(2, 3, padding="same", max_norm=0.5)
    layer.build((None, *size))
    basis = np.eye(np.prod(size)).reshape(-1, *size)
    image = layer.convolution_op(tf.constant(basis, tf.float32), layer._kernel)
    norm = np.linalg.norm(np.reshape(image, (len(basis), -1)), 2)
    np.testing.assert_allclose(layer.spectral_norm, norm, rtol=1e-5)


def test_norm_of_the_initial_kernel():
    layer = SpectrallyNormalizedDense(8, max_norm=0.5, activation="tanh")
    deq_keras.layers.DEQ(deq_keras.layers.cell_from(layer))(np.ones((2, 3), "float32"))
    norm = np.linalg.norm(layer._kernel, 2)
    np.testing.assert_allclose(layer.spectral_norm, norm, rtol=0.05)
    np.testing.assert_allclose(np.linalg.norm(layer.kernel, 2), 0.5, rtol=0.05)


@pytest.mark.parametrize(
    "kind, dtype, regime",
    [
        ("Dense", "float32", "xla"),
        ("Dense", "mixed_float16", "graph"),
        ("Conv2D", "float32", "eager"),
    ],
    indirect=["regime"],
)
def test_layers_within_the_bound_are_unchanged_bit_for_bit(kind, dtype, regime):
    sizes = {"units": 4} if kind == "Dense" else {"filters": 4, "kernel_size": 3}
    options = {**sizes, "dtype": dtype, "activation": "tanh"}
    normalized = getattr(deq_keras.layers, f"SpectrallyNormalized{kind}")
    layer, plain = (
        normalized(max_norm=9.0, **options),
        getattr(keras.layers, kind)(**options),
    )
    shape = (2, 3) if kind == "Dense" else (2, 5, 4, 3)
    inputs = np.random.default_rng(0).normal(size=shape).astype("float32")
    layer.build(shape)
    plain.build(shape)
    plain.set_weights([weight.numpy() for weight in layer.trainable_weights])
    assert float(layer.spectral_norm) < 9.0
    np.testing.assert_array_equal(regime(layer)(inputs), regime(plain)(inputs))
    assert {weight.dtype for weight in layer.weights} == {"float32"}


def test_gradient_is_that_of_the_quotient():
    """With sigma from an SVD: d sigma / dw = u v^T."""
    kernel = np.random.default_rng(1).normal(size=(4, 3))
    layer = _dense(kernel)
    weights = np.random.default_rng(2).normal(size=(4, 3))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(weights * layer.normalized_kernel())
    left, values, right = np.linalg.svd(kernel)
    slope = np.outer(left[:, 0], right[0])
    expected = (
        0.9 / values[0] * (weights - np.sum(weights * kernel) / values[0] * slope)
    )
    np.testing.assert_allclose(
        tape.gradient(loss, layer._kernel.value), expected, atol=1e-12
    )


def test_zero_and_non_finite_kernels_are_kept():
    convolution = SpectrallyNormalizedConv2D(2, 2)
    convolution.build((None, 3, 3, 2))
    for value in (0.0, np.nan):
        convolution._kernel.assign(np.full((2, 2, 2, 2), value))
        np.testing.assert_array_equal(convolution.kernel, convolution._kernel)
    layer = _dense(np.diag([2.0, 1.0]))
    for value in (0.0, np.nan):
        layer._kernel.assign(np.full((2, 2), value))
        with tf.GradientTape() as tape:
            kernel = layer.normalized_kernel(training=True)
        np.testing.assert_array_equal(kernel, layer._kernel)
        if value == 0:
            gradient = tape.gradient(kernel, layer._kernel.value)
            np.testing.assert_array_equal(gradient, np.ones((2, 2)))


def _model():
    """A cell whose kernel starts, and is pulled, far above the bound."""
    layer = SpectrallyNormalizedDense(
        6, activation="tanh", max_norm=0.8, kernel_initializer="random_normal"
    )
    cell = deq_keras.layers.cell_from(layer)
    solver = deq_keras.solvers.FixedPointIteration(4, tol=None)
    deq = deq_keras.layers.DEQ(cell, solver, "phantom", regularizer=None, seed=0)
    model = keras.Sequential([keras.Input((6,)), deq])
    layer._kernel.assign(2.0 * np.random.default_rng(0).normal(size=(6, 6)))
    model.compile(keras.optimizers.SGD(0.3), "mse", run_eagerly=True)
    return model, layer


X = np.random.default_rng(0).normal(size=(16, 6)).astype("float32")
Y = np.sign(X[:, ::-1])


def test_trained_cell_stays_within_the_bound(tmp_path):
    model, layer = _model()
    before = layer._kernel.numpy()
    model.fit(X, Y, epochs=4, verbose=0)
    assert np.linalg.norm(layer._kernel.numpy() - before) > 0.1
    assert np.linalg.norm(layer._kernel, 2) > 1.0
    assert np.linalg.norm(layer.kernel, 2) <= 0.8 * (1 + 1e-6)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.layers[0].cell.layer.kernel, layer.kernel)


@pytest.mark.parametrize(
    "shape, scale", [((5, 5), 1.0), ((7, 3), 1e-12), ((3, 7), 1e12)]
)
@pytest.mark.usefixtures("full_float32")
def test_norm_of_assigned_dense_kernels_is_bounded(shape, scale):
    layer = SpectrallyNormalizedDense(shape[1], max_norm=0.9)
    layer.build((None, shape[0]))
    random = np.random.default_rng(3)
    for kernel in (random.normal(size=shape), np.eye(*shape), np.ones(shape)):
        layer.set_weights([scale * kernel, *layer.get_weights()[1:]])
        norm = np.linalg.norm(scale * kernel, 2)
        actual = np.linalg.norm(layer.kernel.numpy().astype("float64"), 2)
        assert actual <= min(norm, 0.9) * (1 + 1e-6)
        # The largest excess, of equal singular values.
        assert actual >= min(norm, 0.9) * 7 ** (-1 / 2**9) * (1 - 1e-6)


def test_cells_pass_the_kernel_on():
    class Cell(deq_keras.layers.EquilibriumCell):
        def __init__(self, passes, **kwargs):
            super().__init__(**kwargs)
            self.recurrent = SpectrallyNormalizedDense(2, activation="tanh")
            self.passes = passes

        def inject(self, inputs, training=False):
            if not self.recurrent.built:
                self.recurrent.build(inputs.shape)
            kernel = self.recurrent.normalized_kernel(training=training)
            return {"inputs": inputs, "kernel": kernel}

        def initial_state(self, injection):
            return keras.ops.zeros_like(injection["inputs"])

        def call(self, state, injection):
            kernel = injection["kernel"] if self.passes else None
            return self.recurrent(state + injection["inputs"], kernel=kernel)

    inputs = np.random.default_rng(0).normal(size=(2, 4, 4, 2)).astype("float32")
    deq_keras.layers.DEQ(Cell(True))(inputs, training=True)
    with pytest.raises(ValueError, match="`inject`"):
        deq_keras.layers.DEQ(Cell(False))(inputs, training=True)


def test_unsupported_uses_raise():
    layer = SpectrallyNormalizedConv2D(3, 2)
    layer.build((None, 4, 4, 2))
    with pytest.raises(ValueError, match="expected axis 1"):
        layer(np.ones((1, 5, 4, 2), "float32"))
    with pytest.raises(NotImplementedError):
        layer.quantize("int8")
