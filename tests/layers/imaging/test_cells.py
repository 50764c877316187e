"""Reconstruction cells: formulas, contract, training, gradients, bounds, files."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import diagnostics, gradients, layers, solvers
from deq_keras.testing import check_cell
from tests.layers.formulas import convolve, normal, randomize, relu
from tests.regimes import slow

RANDOM = np.random.default_rng(0)
KERNEL = RANDOM.uniform(size=(3, 3)) / 5
MASK = RANDOM.uniform(size=(8, 8)) < 0.5
SHAPE = (8, 8, 1)


def _blur():
    return layers.Blur(KERNEL, SHAPE)


@keras.saving.register_keras_serializable("deq_keras_tests")
class Gain(layers.LinearOperator):
    """Multiplies each pixel by a weight: the norm is the largest of them."""

    def build(self, input_shape):
        super().build(input_shape)
        gain = RANDOM.uniform(0.5, 1, size=input_shape[1:])
        gain[3, 5] = 1.5
        self.gain = self.add_weight(input_shape[1:], lambda *_, **__: gain, name="gain")

    def call(self, images):
        return self.gain * images


OPERATORS = {
    "blur": _blur,
    "inpainting": lambda: layers.Inpainting(MASK, SHAPE),
    "downsampling": lambda: layers.Downsampling(2, SHAPE),
    "fourier": lambda: layers.FourierSampling(MASK, SHAPE),
    "gain": lambda: Gain(SHAPE),
    "matrix": lambda: layers.MatrixOperator(normal((20, 64)), SHAPE),
    "radon": lambda: layers.RadonTransform(SHAPE, 4),
    "blur, zero boundary": lambda: layers.Blur(KERNEL, SHAPE, "zero"),
}
CELLS = {
    "proximal": layers.ProximalGradientCell,
    "half quadratic": layers.HalfQuadraticCell,
}


def _denoiser(dtype=None, **arguments):
    return layers.ImageDenoiser(4, 3, dtype=dtype, **arguments)


def _cell(name="proximal", operator="blur", dtype=None, **arguments):
    denoiser = _denoiser(dtype, **arguments)
    return CELLS[name](OPERATORS[operator](), denoiser, dtype=dtype)


def _measurements(cell, num_samples=3, dtype="float32"):
    operator = cell.operator
    return normal((num_samples, *operator.measurement_shape), 5).astype(dtype)


def _formula(denoiser, images):
    update = np.asarray(images)
    for one in denoiser.convolutions:
        update = convolve(update, one.kernel.numpy()) + one.bias.numpy()
        update = relu(update) if one is not denoiser.convolutions[-1] else update
    return images[..., : update.shape[-1]] + update


def test_formula_of_the_denoiser():
    denoiser, images = _denoiser("float64", channels=2), normal((2, 8, 6, 3))
    denoiser.build((None, 8, 6, 3))
    randomize(denoiser)
    np.testing.assert_allclose(denoiser(images), _formula(denoiser, images), rtol=1e-10)


@pytest.mark.parametrize(
    ("name", "noise_shape"),
    [(name, shape) for name in CELLS for shape in (None, (3,), (3, 1))][::2],
)
def test_formula(name, noise_shape):
    cell = _cell(name, dtype="float64", channels=1)
    inputs = measurements = _measurements(cell, dtype="float64")
    if noise_shape is not None:
        noise = np.arange(3.0).reshape(noise_shape)
        inputs = [tf.constant(measurements), tf.constant(noise)]
    cell.inject(inputs)
    randomize(cell.denoiser)
    state, operator = normal((3, *SHAPE)), cell.operator
    back = operator.adjoint(measurements)

    def denoise(images):
        if noise_shape is not None:
            levels = np.broadcast_to(noise.reshape(3, 1, 1, 1), images.shape)
            images = np.concatenate([images, levels], axis=-1)
        return _formula(cell.denoiser, images)

    if name == "proximal":
        cell.step_logit.assign(1.0)
        step = 2 / operator.norm**2 / (1 + np.exp(-1.0))
        expected = denoise(state - step * (operator.normal(state) - back))
    else:
        cell.log_mu.assign(-1.0)
        mu = np.exp(-1.0) * operator.norm**2
        expected = operator.inverse(back + mu * denoise(state), mu)
    injection = cell.inject(inputs)
    np.testing.assert_allclose(cell(state, injection), expected, rtol=1e-9)
    start = cell.initial_state(injection)
    np.testing.assert_allclose(start, back / operator.norm**2, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "max_norm"),
    [("half quadratic", None), slow("proximal", None), *map(slow, CELLS, (0.9, 0.9))],
)
def test_contract(name, max_norm):
    cell = _cell(name)
    check_cell(
        lambda **dtype: _cell(name, max_norm=max_norm, **dtype), _measurements(cell)
    )


@pytest.mark.slow
def test_contract_with_a_noise_level():
    inputs = [_measurements(_cell()), np.ones((3, 1), "float32")]
    check_cell(lambda **dtype: _cell(channels=1, **dtype), inputs)


@pytest.mark.usefixtures("full_float32")
def test_default_components():
    deq = layers.DEQ(_cell())
    names = [type(one).__name__ for one in (deq.solver, deq.gradient, deq.regularizer)]
    assert names == ["Anderson", "NeumannGradient", "NoneType"]
    assert deq.solver.tol == 1e-4
    half = layers.DEQ(_cell(dtype="mixed_bfloat16"))
    assert half.solver.tol == 2.0**-7  # Rounding permits it, without a warning.
    for gradient in ("truncated", "unrolled"):
        deq = layers.DEQ(_cell(), gradient=gradient, regularizer="residual")
        assert type(deq.solver).__name__ == "FixedPointIteration"
        assert deq.solver.tol == 1e-3
        assert deq.regularizer is not None
    assert layers.DEQ(_cell(), "broyden").solver.tol == 1e-3


@pytest.mark.parametrize(
    ("name", "operator"),
    [
        *(slow(name, "blur") for name in ("proximal", "half quadratic")),
        ("proximal", "gain"),
    ],
)
def test_gradient_against_finite_differences(name, operator):
    denoiser = _denoiser("float64", max_norm=0.5)
    operator = Gain(SHAPE, dtype="float64") if operator == "gain" else _blur()
    cell = CELLS[name](operator, denoiser, dtype="float64")
    solver = solvers.Anderson(max_iter=100, tol=1e-11)
    deq = layers.DEQ(cell, solver, gradients.ImplicitGradient(solver), None)
    inputs = tf.constant(_measurements(cell, 1, "float64"))
    deq(inputs)
    # The step size or mu, and the weights of the operator, on which |A| depends.
    weights = cell.trainable_weights[:1] + cell.operator.trainable_weights
    assert weights[0].shape == ()

    def loss(inputs):
        return tf.reduce_sum(tf.square(deq(inputs)))

    with tf.GradientTape() as tape:
        tape.watch(inputs)
        value = loss(inputs)
    slopes = tape.gradient(value, [*(one.value for one in weights), inputs])
    starts = [one.numpy() for one in weights]
    directions = [normal(one.shape, 1) for one in [*weights, inputs]]
    values, step = [], 1e-5
    for sign in (1, -1):
        for one, start, direction in zip(weights, starts, directions, strict=False):
            one.assign(start + sign * step * direction)
        values.append(float(loss(inputs + sign * step * directions[-1])))
    difference = (values[0] - values[1]) / (2 * step)
    received = sum(np.sum(a * b) for a, b in zip(slopes, directions, strict=True))
    np.testing.assert_allclose(received, difference, rtol=1e-5)


def test_norm_follows_the_weights_of_an_operator(regime):
    """Also if another pixel becomes the largest."""
    cell = layers.ProximalGradientCell(Gain(SHAPE), _denoiser(), step_size=0.99)
    layers.DEQ(cell)(inputs := _measurements(cell))
    steps = regime(lambda: cell.inject(inputs)["step"])
    for pixel in (0, 7):
        gain = np.full(SHAPE, 0.1)
        gain[pixel] = 3.0
        cell.operator.gain.assign(gain)
        assert 1.75 < float(steps()) * 3.0**2 <= 1.981


@pytest.mark.slow
def test_norm_follows_a_trained_operator(tmp_path):
    cell = layers.ProximalGradientCell(Gain(SHAPE), _denoiser(), step_size=0.99)
    deq = layers.DEQ(cell, solvers.FixedPointIteration(3), "phantom", name="deq")
    model = keras.Sequential([keras.Input(SHAPE), deq])
    inputs = _measurements(cell)
    model.compile(keras.optimizers.Adam(0.2), "mse")
    before = cell.operator.gain.numpy()
    model.fit(inputs, 9 * inputs, epochs=3, verbose=0)
    assert np.abs(cell.operator.gain.numpy() - before).max() > 0.1
    step = float(cell.inject(inputs)["step"])
    assert step * np.max(cell.operator.gain) ** 2 < 2
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(
        loaded.predict(inputs, verbose=0), model.predict(inputs, verbose=0)
    )


@pytest.mark.parametrize("name", ["proximal", slow("half quadratic")])
@pytest.mark.usefixtures("full_float32")
def test_certificate(name):
    """The bound holds, also after the kernels have grown."""
    cell = _cell(name, max_norm=0.5)
    deq = layers.DEQ(cell, solvers.FixedPointIteration())
    inputs = _measurements(cell)
    deq(inputs)
    randomize(cell.denoiser)
    exact = deq(inputs, max_iter=300, tol=1e-6)
    state = deq(inputs, max_iter=4)
    certificate = diagnostics.certify(deq, inputs, state)
    assert set(certificate.kind.numpy()) == {b"certified"}
    distance = np.linalg.norm(np.reshape(state - exact, (3, -1)), axis=1)
    assert np.all(distance <= certificate.radius)
    constant = float(cell.lipschitz_constant(deq.inject(inputs)))
    assert 0.74 < constant < 0.9


def test_bound_of_convolutions():
    denoiser = layers.ImageDenoiser(3, 2, max_norm=1.0)
    denoiser.build((None, 5, 6, 2))
    randomize(denoiser)
    kernels = [normal((3, 3, 2, 3)), normal((3, 3, 3, 2), 1)]
    norms = []
    for kernel in kernels:
        basis = np.eye(30 * kernel.shape[2]).reshape(-1, 5, 6, kernel.shape[2])
        norms.append(np.linalg.norm(convolve(basis, kernel).reshape(len(basis), -1), 2))
    bound = 2 * float(denoiser.lipschitz_constant(kernels)) - 1
    assert norms[0] * norms[1] <= bound <= 1.3 * norms[0] * norms[1]
    assert layers.ImageDenoiser().lipschitz_constant() is None


def test_nothing_is_declared_without_proof():
    for cell in (
        _cell(),  # No bound of the denoiser.
        _cell(operator="radon", max_norm=0.9),  # The norm of A is an estimate.
    ):
        inputs = _measurements(cell)
        assert cell.lipschitz_constant(cell.inject(inputs)) is None
