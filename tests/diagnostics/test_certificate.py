"""Certificates against closed forms."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from deq_keras import layers, solvers
from deq_keras.diagnostics import certify
from tests.layers.cells import TanhCell

RANDOM = np.random.RandomState(0)
INPUTS = RANDOM.normal(size=(3, 4))


# In TensorFloat-32, no float32 on a GPU is certified.
pytestmark = pytest.mark.usefixtures("full_float32")


class SineCell(layers.EquilibriumCell):
    """f(z, x) = 0.5 sin(z) + x W, with a layer of its own precision."""

    def __init__(self, units, layer_dtype=None, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(units, dtype=layer_dtype)

    def inject(self, inputs, training=False):
        return ops.cast(self.dense(inputs), self.compute_dtype)

    def call(self, state, injection):
        return 0.5 * ops.sin(state) + injection

    def lipschitz_constant(self, injection):
        return 0.5


class Declared:
    """A function of a state that declares a constant."""

    def __init__(self, function, lipschitz=None):
        self.function = function
        self.lipschitz = lipschitz

    def __call__(self, state, _):
        return self.function(state)

    def lipschitz_constant(self, _):
        return self.lipschitz


def _problem(function, lipschitz=None, **options):
    return solvers.FixedPointProblem(Declared(function, lipschitz), **options)


def _linear(matrix, lipschitz=None, dtype="float64"):
    """z -> z A^T + b; returns the problem, a state and its distance to z*."""
    size = len(matrix)
    equilibrium, error = RANDOM.normal(size=(2, 3, size))
    bias = tf.constant(equilibrium - equilibrium @ matrix.T, dtype)
    kernel = tf.constant(matrix.T, dtype)
    problem = _problem(lambda z: tf.matmul(z, kernel) + bias, lipschitz)
    state = tf.constant(equilibrium + error, dtype)
    return problem, state, np.linalg.norm(error, axis=1)


def _orthogonal(size):
    return np.linalg.qr(RANDOM.normal(size=(size, size)))[0]


def _kinds(certificate):
    return [kind.decode() for kind in certificate.kind.numpy()]


def test_banach_bound_of_scaled_orthogonal_maps():
    norm = 0.9
    problem, state, distance = _linear(norm * np.eye(5), norm)
    np.testing.assert_allclose(problem.distance_bound(state), distance, rtol=1e-12)
    problem, state, distance = _linear(norm * _orthogonal(5), norm)
    bound = problem.distance_bound(state).numpy()
    assert np.all(bound >= distance)
    assert np.all(bound <= (1 + norm) / (1 - norm) * distance)


@pytest.mark.parametrize("constant", [np.nan, -0.1, [0.5, 1.0, 2.0]])
def test_no_banach_bound_without_a_contraction(constant):
    problem, state, _ = _linear(0.5 * np.eye(5), constant)
    bound = problem.distance_bound(state)
    np.testing.assert_array_equal(np.isfinite(bound), np.equal(constant, [0.5] * 3))


def test_no_bound_is_declared():
    problem, state, _ = _linear(0.5 * np.eye(5))
    assert problem.distance_bound(state) is None
    assert solvers.FixedPointProblem.of(lambda z: z).distance_bound(state) is None
    cell = TanhCell(5)
    assert layers.DEQ(cell).problem(np.float32(INPUTS)).lipschitz_constant is None


def test_a_constant_that_f_exceeds_is_reported():
    matrix = np.diag([0.9, 0.2])
    problem, state, _ = _linear(matrix, [0.5, 0.9, 0.95])
    certificate = certify(problem, state=state)
    assert _kinds(certificate) == ["contradicted", "certified", "certified"]
    assert np.isinf(certificate.radius[0])
    np.testing.assert_array_equal(certificate.unique, [False, True, True])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rounding_does_not_contradict_a_constant(dtype):
    matrix = 0.9 * _orthogonal(40)
    problem, state, _ = _linear(matrix, 0.9, dtype)
    kind = "certified" if dtype == "float32" else "estimated"
    assert _kinds(certify(problem, state=state)) == [kind] * 3


def test_inexact_layers_are_not_certified():
    """Half precision and integers in a sublayer, behind a state of float32."""
    x = np.float32(INPUTS)
    for dtype in ("mixed_float16", "mixed_bfloat16"):
        cell = SineCell(4, dtype)
        assert _kinds(certify(layers.DEQ(cell), x)) == ["estimated"] * 3
    deq = layers.DEQ(SineCell(4))
    assert _kinds(certify(deq, x)) == ["certified"] * 3
    deq.cell.dense.quantize("int8")
    assert _kinds(certify(deq, x)) == ["estimated"] * 3


def test_tensor_float_32_is_not_certified(monkeypatch):
    details = {"compute_capability": (9, 0)}
    problem, state, _ = _linear(0.5 * np.eye(4), 0.5, "float32")
    wide, wide_state, _ = _linear(0.5 * np.eye(4), 0.5, "float64")
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind])
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda _: details)
    for is_enabled, kind in ((True, "estimated"), (False, "certified")):
        tf.config.experimental.enable_tensor_float_32_execution(is_enabled)
        assert _kinds(certify(problem, state=state)) == [kind] * 3
        assert _kinds(certify(wide, state=wide_state)) == ["certified"] * 3


def _dense_layer(norm, activation="tanh", dtype="float64", **arguments):
    cell = layers.DenseCell(6, activation, seed=0, dtype=dtype, **arguments)
    deq = layers.DEQ(cell, solvers.Anderson(200, 1e-3), dtype=dtype)
    deq(INPUTS)
    kernel = np.random.RandomState(1).normal(size=(6, 6))
    cell.recurrent.kernel.assign(norm * kernel / np.linalg.norm(kernel, 2))
    return deq


def test_dense_cell_that_contracts():
    deq = _dense_layer(0.8)
    exact = deq.solve(INPUTS, solvers.SolveRequest(tol=1e-12)).value
    distance = np.linalg.norm(deq.solve(INPUTS).value - exact, axis=1)
    certificate = certify(deq, INPUTS)
    assert _kinds(certificate) == ["certified"] * 3
    assert np.all(certificate.unique) and np.all(distance > 1e-6)
    assert np.all(certificate.radius >= distance * (1 - 1e-6))
    assert np.all(certificate.radius <= 1.8 / 0.2 * distance)


def test_a_dense_cell_that_expands_has_no_certificate():
    certificate = certify(_dense_layer(1.8), INPUTS)
    assert _kinds(certificate) == ["none"] * 3 and not np.any(certificate.unique)


@pytest.mark.parametrize(
    "activation, weight_normalization", [("tanh", True), ("sigmoid", False)]
)
def test_constants_of_a_dense_cell(activation, weight_normalization):
    cell = layers.DenseCell(
        6,
        activation,
        weight_normalization=weight_normalization,
        kernel_initializer=keras.initializers.RandomNormal(stddev=1.0, seed=1),
        dtype="float64",
    )
    problem = layers.DEQ(cell).problem(INPUTS)
    kernel = np.asarray(cell.recurrent.kernel)
    slope = 0.25 if activation == "sigmoid" else 1.0
    constant = problem.lipschitz_constant
    np.testing.assert_allclose(constant, slope * np.linalg.norm(kernel, 2), rtol=1e-3)
    assert constant >= slope * np.linalg.norm(kernel, 2) * (1 - 1e-12)


def test_cells_without_a_constant():
    x = np.float32(INPUTS)
    for cell in (
        layers.DenseCell(4, "gelu"),
        layers.DenseCell(4, layer_normalization=True),
        layers.cell_from(keras.layers.Dense(4, "tanh"), "concat"),
        layers.cell_from(
            keras.Sequential([keras.layers.Dense(4), layers.GroupNormalization(2)])
        ),
    ):
        problem = layers.DEQ(cell).problem(x)
        assert problem.lipschitz_constant is None


class Twice:
    """Doubles what a layer of Keras returns, as a mixin."""

    def call(self, *args, **kwargs):
        return 2 * super().call(*args, **kwargs)


class TwiceDense(keras.layers.Dense):
    def call(self, inputs):
        return 2 * super().call(inputs)


@dataclasses.dataclass
class Slope:
    """An activation without a hash."""

    slope: float

    def __call__(self, inputs):
        return self.slope * inputs


def _patched_call(layer):
    call = layer.call
    layer.call = lambda *args, **kwargs: 2 * call(*args, **kwargs)
    return layer


CHANGED = {
    "mixin": lambda: type("Mixed", (Twice, layers.DenseCell), {})(4),
    "patched": lambda: _patched_call(layers.DenseCell(4)),
    "slope": lambda: layers.DenseCell(4, Slope(2.0)),
    "patched_sequential": lambda: layers.cell_from(
        _patched_call(keras.Sequential([keras.layers.Dense(4, "tanh")]))
    ),
    "inside": lambda: layers.cell_from(
        keras.Sequential([TwiceDense(4, "tanh"), keras.layers.Dense(4)])
    ),
    "layer_cell": lambda: type(
        "Mixed", (Twice, type(layers.cell_from(keras.layers.Dense(4)))), {}
    )(keras.layers.Dense(4)),
}


@pytest.mark.parametrize("make", CHANGED.values(), ids=CHANGED)
def test_changed_function_inherits_no_constant(make):
    x = np.float32(INPUTS)
    deq = layers.DEQ(make(), solvers.FixedPointIteration(2))
    problem = deq.problem(x)
    assert problem.lipschitz_constant is None
    assert problem.distance_bound(np.zeros((3, 4), "float32")) is None
    assert _kinds(certify(deq, x)) == ["none"] * 3


def test_subclass_states_its_constant():
    class StatedCell(Twice, layers.DenseCell):
        def lipschitz_constant(self, injection):
            return 2 * super().lipschitz_constant(injection)

    class PreparedCell(layers.DenseCell):
        def inject(self, inputs, training=False):
            return super().inject(inputs / 2, training)

    x = np.float32(INPUTS)
    for cls, factor in ((StatedCell, 2), (PreparedCell, 1)):
        cell = cls(4, seed=0)
        problem = layers.DEQ(cell).problem(x)
        norm = np.linalg.norm(cell.recurrent.kernel, 2)
        np.testing.assert_allclose(problem.lipschitz_constant, factor * norm, rtol=1e-3)


def test_an_update_of_lora_counts():
    deq = layers.DEQ(layers.cell_from(keras.layers.Dense(4, "tanh")))
    x = np.float32(INPUTS)
    deq(x)
    dense = deq.cell.layer
    dense.enable_lora(2)
    dense.lora_kernel_b.assign(RANDOM.normal(size=(2, 4)))
    norm = np.linalg.norm(dense.kernel, 2)
    assert norm > 1.1 * np.linalg.norm(dense._kernel, 2)
    np.testing.assert_allclose(deq.problem(x).lipschitz_constant, norm, rtol=1e-3)


def test_the_constant_of_a_cell_made_of_layers():
    first = layers.SpectrallyNormalizedDense(8, max_norm=0.9, activation="relu")
    second = keras.layers.Dense(4, "sigmoid")
    deq = layers.DEQ(layers.cell_from(keras.Sequential([first, second])))
    problem = deq.problem(np.float32(INPUTS))
    norms = [np.linalg.norm(layer.kernel, 2) for layer in (first, second)]
    np.testing.assert_allclose(
        problem.lipschitz_constant, norms[0] * norms[1] / 4, rtol=1e-3
    )
    assert norms[0] == pytest.approx(0.9, rel=1e-2)


def test_norms_include_all_leaves_of_a_state():
    equilibrium = {"map": np.ones((2, 3, 2)), "vector": np.zeros((2, 4))}

    def halved(state):
        return {name: (state[name] + equilibrium[name]) / 2 for name in state}

    state = {name: tf.constant(leaf + 2.0) for name, leaf in equilibrium.items()}
    problem = _problem(halved, 0.5)
    distance = 2 * np.sqrt(10)
    np.testing.assert_allclose(problem.distance_bound(state), distance)
    np.testing.assert_allclose(certify(problem, state=state).radius, distance)


def test_padding_does_not_count():
    cell = layers.DenseCell(5, kernel_initializer="zeros", seed=0)
    deq = layers.DEQ(cell, solvers.FixedPointIteration(1, tol=None))
    x = np.random.RandomState(3).normal(size=(2, 3, 4)).astype("float32")
    mask = np.array([[True, True, False], [True, False, False]])
    problem = deq.problem(x, mask=tf.constant(mask))
    state = deq.request(problem).initial_state
    target = np.tanh(np.asarray(cell.projection(x))) * mask[..., None]
    distance = np.sqrt((target**2).sum(axis=(1, 2)))
    np.testing.assert_allclose(problem.distance_bound(state), distance, rtol=1e-5)


def test_monotone_cell_has_its_own_bound():
    deq = layers.DEQ(layers.MonotoneDenseCell(5))
    x = tf.constant(INPUTS, tf.float32)
    certificate = certify(deq, x)
    bound = deq.cell.distance_bound(deq.solve(x).value, deq.inject(x))
    np.testing.assert_allclose(certificate.radius, bound, rtol=1e-2)
    assert _kinds(certificate) == ["certified"] * 3 and np.all(certificate.unique)
    masked = deq.problem(x, mask=tf.ones((3,), tf.bool))
    assert masked.distance_bound(deq.solve(x).value) is None


class OtherCall(layers.MonotoneDenseCell):
    def call(self, state, injection):
        return 2 * super().call(state, injection)


class OtherOperator(layers.MonotoneDenseCell):
    def inject(self, inputs, training=False):
        injection = super().inject(inputs, training)
        return {**injection, "operator": 2 * injection["operator"]}


@pytest.mark.parametrize(
    "cls, has_splitting", [(OtherCall, False), (OtherOperator, True)]
)
def test_changed_monotone_cell_inherits_no_bound(cls, has_splitting):
    x = np.float32(INPUTS)
    deq = layers.DEQ(cls(4), solvers.Anderson())
    problem, state = deq.problem(x), np.zeros((3, 4), "float32")
    assert (problem.splitting is not None) == has_splitting
    assert problem.distance_bound(state) is None
    assert np.all(np.isinf(deq.cell.distance_bound(state, deq.inject(x))))
    assert deq.cell.lipschitz_bound() == float("inf")
    assert _kinds(certify(deq, x)) == ["none"] * 3
    default = layers.DEQ(cls(4)).solver
    assert isinstance(default, solvers.PeacemanRachford) == has_splitting


def test_an_operator_that_is_not_monotone():
    cell = layers.MonotoneConvCell(2, m=0.01, sign=-1)
    deq = layers.DEQ(cell, solvers.FixedPointIteration(2))
    x = np.ones((2, 4, 4, 1), "float32")
    state = deq.solve(x).value
    assert cell.strong_monotonicity() < 0
    assert np.all(np.isinf(deq.problem(x).distance_bound(state)))
    certificate = certify(deq, x)
    assert _kinds(certificate) == ["none"] * 2 and not np.any(certificate.unique)


def test_non_finite_samples_have_no_certificate():
    deq = _dense_layer(0.8)
    x = INPUTS.copy()
    x[1, 0] = np.nan
    some = certify(deq, x)
    assert _kinds(some) == ["certified", "none", "certified"]
    assert np.isinf(some.radius[1]) and not some.unique[1]
    every = certify(deq, INPUTS)
    np.testing.assert_allclose(some.radius[::2], every.radius[::2], rtol=1e-9)
    problem, state, _ = _linear(0.5 * np.eye(5), 0.5)
    broken = certify(problem, state=state + [[0.0], [np.inf], [0.0]])
    assert _kinds(broken) == ["certified", "none", "certified"]


def test_a_model_and_a_given_state():
    deq = _dense_layer(0.8, dtype="float32")
    encoder = keras.layers.Dense(4)
    model = keras.Sequential([keras.Input((2,)), encoder, deq])
    x = np.float32(INPUTS[:, :2])
    whole, alone = certify(model, x), certify(deq, encoder(x))
    np.testing.assert_array_equal(whole.radius, alone.radius)
    state = np.zeros((3, 6), "float32")
    far = certify(model, x, state=state)
    distance = np.linalg.norm(deq(encoder(x)), axis=1)
    assert np.all(far.radius >= distance * (1 - 1e-2))
