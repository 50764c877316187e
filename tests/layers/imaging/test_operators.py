"""Linear operators: formulas in NumPy, adjoints, norms, inverses and gradients."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import layers
from tests import harness
from tests.layers.formulas import normal
from tests.regimes import slow

RANDOM = np.random.default_rng(0)
KERNEL = RANDOM.uniform(size=(3, 5))
MASK = RANDOM.uniform(size=(8, 6)) < 0.5
COLOR_MASK = RANDOM.uniform(size=(8, 6, 2)) < 0.5
MATRIX = RANDOM.normal(size=(20, 96))
GRAY, COLOR = (8, 6, 1), (8, 6, 2)


@keras.saving.register_keras_serializable("deq_keras_tests")
class Differences(layers.LinearOperator):
    """An operator of a user, who writes only `call`."""

    def call(self, images):
        return images[:, 1:] - images[:, :-1]


OPERATORS = {
    "blur": lambda: layers.Blur(KERNEL, COLOR),
    "blur, zero boundary": lambda: layers.Blur(KERNEL, COLOR, "zero"),
    "inpainting": lambda: layers.Inpainting(MASK, COLOR),
    "inpainting of channels": lambda: layers.Inpainting(COLOR_MASK, COLOR),
    "downsampling": lambda: layers.Downsampling(2, COLOR),
    "fourier, real": lambda: layers.FourierSampling(MASK, GRAY),
    "fourier, complex": lambda: layers.FourierSampling(MASK, COLOR),
    "radon": lambda: layers.RadonTransform(COLOR, 5),
    "matrix": lambda: layers.MatrixOperator(MATRIX, COLOR),
    "user": lambda: Differences(COLOR),
}


@pytest.fixture(params=OPERATORS)
def operator(request):
    return OPERATORS[request.param]()


# By convolution, by a complex transform, by indices, and without an adjoint of its own.
XLA_IS_FAST = ("blur, zero boundary", "fourier, complex", "radon", "user")


def _matrix_of(operator):
    """Returns the matrix of an operator, `(measurements, pixels)`."""
    num_pixels = np.prod(operator.image_shape)
    basis = np.eye(num_pixels).reshape(-1, *operator.image_shape)
    return operator.call(tf.constant(basis)).numpy().reshape(num_pixels, -1).T


def test_adjoint_and_normal_are_those_of_the_matrix(operator):
    matrix, images = _matrix_of(operator), normal((3, *operator.image_shape))
    measurements = normal((3, *operator.measurement_shape), 1)
    assert operator.call(tf.constant(images)).shape == measurements.shape
    expected = (measurements.reshape(3, -1) @ matrix).reshape(images.shape)
    adjoint = operator.adjoint(tf.constant(measurements))
    np.testing.assert_allclose(adjoint, expected, atol=1e-10)
    operator.check_adjoint()
    expected = (images.reshape(3, -1) @ matrix.T @ matrix).reshape(images.shape)
    np.testing.assert_allclose(operator.normal(tf.constant(images)), expected, 1e-10)


def test_norm(operator):
    matrix = _matrix_of(operator)
    exact = np.linalg.norm(matrix, 2)
    if operator.norm_bound() is None:
        assert exact <= operator.norm <= 1.06 * exact
    elif getattr(operator, "boundary", None) == "zero":
        assert exact <= operator.norm <= 1.3 * exact
    else:
        np.testing.assert_allclose(operator.norm, exact, rtol=1e-12)


def test_norm_of_frequencies_between_those_of_the_image():
    """The largest eigenvalue of a Laplacian of odd sides with a zero boundary."""
    kernel = np.array([[0.0, -1.0, 0.0], [-1.0, 4.0, -1.0], [0.0, -1.0, 0.0]])
    operator = layers.Blur(kernel, (5, 5, 1), "zero")
    exact = 4 + 4 * np.cos(np.pi / 6)
    np.testing.assert_allclose(np.linalg.norm(_matrix_of(operator), 2), exact)
    assert exact <= operator.norm <= 1.05 * exact


def test_inverse(operator):
    matrix, images = _matrix_of(operator), normal((3, *operator.image_shape))
    try:
        operator.inverse(tf.zeros((1, *operator.image_shape)), 1.0)
    except ValueError as error:
        assert "has no inverse" in str(error)
        assert type(operator) in (layers.Blur, layers.RadonTransform, Differences)
        return
    system = matrix.T @ matrix + 0.3 * np.eye(matrix.shape[1])
    expected = np.linalg.solve(system, images.reshape(3, -1).T).T.reshape(images.shape)
    received = operator.inverse(tf.constant(images), tf.constant(0.3, tf.float64))
    np.testing.assert_allclose(received, expected, rtol=1e-10)


@pytest.mark.parametrize(
    "operator",
    [name if name in XLA_IS_FAST else slow(name) for name in OPERATORS],
    indirect=True,
)
@pytest.mark.usefixtures("full_float32")
def test_regimes_gradients_and_config(operator):
    images = normal((3, *operator.image_shape)).astype("float32")
    harness.check_regimes(lambda: operator, images)
    measurements = operator(images)
    for jit_compile in (False, True):
        adjoint = tf.function(operator.adjoint, jit_compile=jit_compile)
        expected = operator.adjoint(measurements)
        np.testing.assert_allclose(
            adjoint(measurements), expected, rtol=1e-5, atol=1e-5
        )
    slope = harness.gradients(
        lambda: operator.adjoint(measurements), measurements, images
    )
    np.testing.assert_allclose(slope, measurements, rtol=1e-5, atol=1e-5)
    harness.check_round_trip(operator)
    copy = type(operator).from_config(operator.get_config())
    np.testing.assert_array_equal(copy(images), measurements)
    model = keras.Sequential([keras.Input(operator.image_shape), operator])
    assert model.output_shape == (None, *operator.measurement_shape)
    frames = keras.layers.TimeDistributed(operator)(images[:, None])
    np.testing.assert_allclose(frames[:, 0], measurements, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("boundary", ["circular", "zero"])
def test_blur_is_a_convolution(boundary):
    images = normal((2, *COLOR))
    padded = np.pad(
        images,
        [(0, 0), (1, 1), (2, 2), (0, 0)],
        "wrap" if boundary == "circular" else "constant",
    )
    expected = sum(
        KERNEL[k, l] * padded[:, 2 - k : 10 - k, 4 - l : 10 - l]
        for k in range(3)
        for l in range(5)  # noqa: E741
    )
    received = layers.Blur(KERNEL, COLOR, boundary).call(tf.constant(images))
    np.testing.assert_allclose(received, expected, atol=1e-12)


def test_fourier_sampling_equals_numpy():
    images = normal((2, *COLOR))
    transformed = np.fft.fft2(images[..., 0] + 1j * images[..., 1], norm="ortho") * MASK
    expected = np.stack([transformed.real, transformed.imag], axis=-1)
    received = layers.FourierSampling(MASK, COLOR).call(tf.constant(images))
    np.testing.assert_allclose(received, expected, atol=1e-12)
    transformed = np.fft.fft2(images[..., 0], norm="ortho") * MASK
    expected = np.stack([transformed.real, transformed.imag], axis=-1)
    real = layers.FourierSampling(MASK, GRAY).call(tf.constant(images[..., :1]))
    np.testing.assert_allclose(real, expected, atol=1e-12)


def test_downsampling_equals_numpy():
    images = normal((2, *COLOR))
    expected = images.reshape(2, 4, 2, 3, 2, 2).mean(axis=(2, 4))
    received = layers.Downsampling(2, COLOR).call(tf.constant(images))
    np.testing.assert_allclose(received, expected, atol=1e-12)


def _area_before(row, column, angle, limit):
    """Area of a pixel where x cos + y sin < limit, by clipping its square."""
    corners = np.array([row, column]) + [
        (-0.5, -0.5),
        (-0.5, 0.5),
        (0.5, 0.5),
        (0.5, -0.5),
    ]
    heights = corners @ [np.sin(angle), np.cos(angle)] - limit
    polygon = []
    for i in range(4):
        (one, two), (before, after) = corners[[i - 1, i]], heights[[i - 1, i]]
        if (before < 0) != (after < 0):
            polygon.append(one + (two - one) * before / (before - after))
        if after < 0:
            polygon.append(two)
    y, x = np.array(polygon or [(0, 0)]).T
    return abs(x @ np.roll(y, 1) - y @ np.roll(x, 1)) / 2


@pytest.mark.parametrize("shape", [(3, 4, 1), (5, 3, 1), (1, 1, 1)])
def test_radon_transform_measures_areas_of_pixels_in_strips(shape):
    """Against clipped polygons, at 12 angles: 0, 15, 30, 45 ... degrees."""
    operator = layers.RadonTransform(shape, 12)
    matrix = _matrix_of(operator).reshape(12, operator.num_bins, *shape[:2])
    for k, b, row, column in np.ndindex(*matrix.shape):
        place = row - (shape[0] - 1) / 2, column - (shape[1] - 1) / 2, k * np.pi / 12
        t = b - operator.num_bins // 2
        area = _area_before(*place, t + 0.5) - _area_before(*place, t - 0.5)
        assert matrix[k, b, row, column] == pytest.approx(area, abs=1e-12)
    # The outermost bins are needed, and enough.
    np.testing.assert_allclose(matrix.sum(axis=1), 1, rtol=1e-12)
    assert matrix[:, [0, -1]].any()


def test_radon_transform_of_a_gaussian():
    """Against its line integrals, which are known for every angle."""
    y, x = np.mgrid[:65, :65] - 32.0
    image = np.exp(-((x - 3) ** 2 + (y - 5) ** 2) / 32)
    for num_angles in (12, 7):
        operator = layers.RadonTransform((65, 65, 1), num_angles)
        received = operator.call(tf.constant(image[None, ..., None]))[0, ..., 0]
        angles = np.pi / num_angles * np.arange(num_angles)[:, None]
        bins = np.arange(operator.num_bins) - operator.num_bins // 2
        distances = bins - 3 * np.cos(angles) - 5 * np.sin(angles)
        expected = 4 * np.sqrt(2 * np.pi) * np.exp(-(distances**2) / 32)
        errors = np.linalg.norm(received - expected, axis=1)
        assert np.all(errors <= 0.005 * np.linalg.norm(expected, axis=1))


def test_integers_are_computed_in_floating_point(operator):
    """Also in a model and a dataset of integers, and whatever Keras' format is."""
    shapes = operator.image_shape, operator.measurement_shape
    images, measured = (RANDOM.integers(0, 2, (2, *shape)) for shape in shapes)
    methods = [(operator, images), (operator.normal, images)]
    methods.append((operator.adjoint, measured))
    if type(operator) in (layers.MatrixOperator, layers.Inpainting):
        methods.append((lambda x: operator.inverse(images=x, mu=1), images))
    expected = [method(array.astype("float32")) for method, array in methods]
    keras.config.set_image_data_format("channels_first")
    try:
        for dtype in ("uint8", "int32", "bool"):
            for (method, array), right in zip(methods, expected, strict=True):
                np.testing.assert_array_equal(method(array.astype(dtype)), right)
        pixels = images.astype("uint8")
        inputs = keras.Input(operator.image_shape, dtype="uint8")
        model = keras.Model(inputs, operator(inputs))
        assert model.output.dtype == model(pixels).dtype == "float32"
        (batch,) = tf.data.Dataset.from_tensors(pixels).map(operator)
    finally:
        keras.config.set_image_data_format("channels_last")
    for received in (model(pixels), batch):
        np.testing.assert_allclose(received, expected[0], rtol=1e-6, atol=1e-6)


@keras.saving.register_keras_serializable("deq_keras_tests")
class Flat(layers.LinearOperator):
    """An operator of a user that keeps an array, such as a flat field of a camera."""

    def __init__(self, gains, image_shape):
        super().__init__(image_shape)
        self.gains = gains

    def call(self, images):
        return keras.ops.multiply(images, self.gains)


@pytest.mark.parametrize("dtype", [">f4", ">f8", ">i2"])
def test_arrays_of_a_user_can_be_big_endian(dtype):
    """A constant of a graph has the bytes of an array, in whatever order they are."""
    gains = RANDOM.integers(1, 9, COLOR)
    operator = Flat(gains.astype(dtype), COLOR)
    images = normal((2, *COLOR)).astype("float32")
    for call in (operator, tf.function(operator)):
        np.testing.assert_allclose(call(images), gains * images, rtol=1e-6)


def test_check_of_adjoints_allows_for_rounding():
    class Rounded(layers.MatrixOperator):
        def call(self, images):
            return super().call(tf.cast(images, tf.bfloat16))

        def adjoint(self, measurements):
            return super().adjoint(tf.cast(measurements, tf.bfloat16))

    def matrix(seed, shape):
        return np.random.default_rng(seed).normal(size=shape)

    layers.MatrixOperator(matrix(0, (20, 96)), COLOR, dtype="bfloat16").check_adjoint()
    Rounded(matrix(38, (48, 30)).T, GRAY, dtype="bfloat16").check_adjoint()


def test_matrix_can_be_sparse():
    matrix = np.where(np.abs(MATRIX) > 1, MATRIX, 0)
    sparse = types.SimpleNamespace(toarray=lambda: matrix)  # Matrices of SciPy.
    operator = layers.MatrixOperator(sparse, COLOR)
    np.testing.assert_array_equal(operator.matrix, matrix)


def test_half_precision(operator):
    images = normal((2, *operator.image_shape)).astype("float32")
    expected = operator(images)
    received = operator.call(tf.cast(images, tf.bfloat16))
    assert received.dtype == tf.bfloat16
    largest = np.abs(expected).max()
    np.testing.assert_allclose(
        tf.cast(received, tf.float32), expected, atol=0.05 * largest
    )
