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
_ONE_STEP = solvers.FixedPointIteration(1, tol=None)

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


class LinearCell(layers.EquilibriumCell):
    """f(z, u) = z A^T + u, with a declared constant."""

    def __init__(self, matrix, constant, **kwargs):
        super().__init__(**kwargs)
        self.matrix, self.constant = matrix, constant

    def call(self, state, injection):
        return ops.matmul(state, ops.cast(self.matrix.T, state.dtype)) + injection

    def lipschitz_constant(self, injection):
        return self.constant


def _linear(matrix, constant=None, dtype="float64"):
    """Returns a layer, inputs, a state and its distance to the equilibrium."""
    equilibrium, error = RANDOM.normal(size=(2, 3, len(matrix)))
    deq = layers.DEQ(LinearCell(matrix, constant, dtype=dtype), _ONE_STEP, dtype=dtype)
    inputs = tf.constant(equilibrium - equilibrium @ matrix.T, dtype)
    state = tf.constant(equilibrium + error, dtype)
    return deq, inputs, state, np.linalg.norm(error, axis=1)


def _orthogonal(size):
    return np.linalg.qr(RANDOM.normal(size=(size, size)))[0]


def _constant(deq, inputs):
    """Returns the constant that `certify` reads."""
    problem = deq.problem(inputs)
    return problem.fn.lipschitz_constant(problem.injection)


def _kinds(certificate):
    return [kind.decode() for kind in certificate.kind.numpy()]


def test_banach_bound_of_scaled_orthogonal_maps():
    norm = 0.9
    *arguments, distance = _linear(norm * np.eye(5), norm)
    np.testing.assert_allclose(certify(*arguments).radius, distance, rtol=1e-12)
    *arguments, distance = _linear(norm * _orthogonal(5), norm)
    bound = certify(*arguments).radius.numpy()
    assert np.all(bound >= distance)
    assert np.all(bound <= (1 + norm) / (1 - norm) * distance)


@pytest.mark.parametrize("constant", [None, np.nan, -0.1, [0.5, 1.0, 2.0]])
def test_no_banach_bound_without_a_contraction(constant):
    *arguments, _ = _linear(0.5 * np.eye(5), constant)
    certificate = certify(*arguments)
    expected = np.equal(constant, [0.5] * 3)
    np.testing.assert_array_equal(np.isfinite(certificate.radius), expected)
    np.testing.assert_array_equal(np.equal(_kinds(certificate), "certified"), expected)


def test_a_constant_that_f_exceeds_is_reported():
    *arguments, _ = _linear(np.diag([0.9, 0.2]), [0.5, 0.9, 0.95])
    certificate = certify(*arguments)
    assert _kinds(certificate) == ["contradicted", "certified", "certified"]
    assert np.isinf(certificate.radius[0])
    np.testing.assert_array_equal(certificate.unique, [False, True, True])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rounding_does_not_contradict_a_constant(dtype):
    matrix = 0.9 * _orthogonal(40)
    *arguments, _ = _linear(matrix, 0.9, dtype)
    kind = "certified" if dtype == "float32" else "estimated"
    assert _kinds(certify(*arguments)) == [kind] * 3


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
    *single, _ = _linear(0.5 * np.eye(4), 0.5, "float32")
    *double, _ = _linear(0.5 * np.eye(4), 0.5, "float64")
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind])
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda _: details)
    for is_enabled, kind in ((True, "estimated"), (False, "certified")):
        tf.config.experimental.enable_tensor_float_32_execution(is_enabled)
        assert _kinds(certify(*single)) == [kind] * 3
        assert _kinds(certify(*double)) == ["certified"] * 3


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
    constant = _constant(layers.DEQ(cell), INPUTS)
    kernel = np.asarray(cell.recurrent.kernel)
    slope = 0.25 if activation == "sigmoid" else 1.0
    np.testing.assert_allclose(constant, slope * np.linalg.norm(kernel, 2), rtol=1e-3)
    assert constant >= slope * np.linalg.norm(kernel, 2) * (1 - 1e-12)


def test_cells_without_a_constant():
    x = np.float32(INPUTS)
    for cell in (
        TanhCell(4),
        layers.DenseCell(4, "gelu"),
        layers.DenseCell(4, layer_normalization=True),
        layers.cell_from(keras.layers.Dense(4, "tanh"), "concat"),
        layers.cell_from(
            keras.Sequential([keras.layers.Dense(4), layers.GroupNormalization(2)])
        ),
    ):
        assert _constant(layers.DEQ(cell), x) is None


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
    assert _constant(deq, x) is None
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
        constant = _constant(layers.DEQ(cell), x)
        norm = np.linalg.norm(cell.recurrent.kernel, 2)
        np.testing.assert_allclose(constant, factor * norm, rtol=1e-3)


def test_an_update_of_lora_counts():
    deq = layers.DEQ(layers.cell_from(keras.layers.Dense(4, "tanh")))
    x = np.float32(INPUTS)
    deq(x)
    dense = deq.cell.layer
    dense.enable_lora(2)
    dense.lora_kernel_b.assign(RANDOM.normal(size=(2, 4)))
    norm = np.linalg.norm(dense.kernel, 2)
    assert norm > 1.1 * np.linalg.norm(dense._kernel, 2)
    np.testing.assert_allclose(_constant(deq, x), norm, rtol=1e-3)


def test_the_constant_of_a_cell_made_of_layers():
    first = layers.SpectrallyNormalizedDense(8, max_norm=0.9, activation="relu")
    second = keras.layers.Dense(4, "sigmoid")
    deq = layers.DEQ(layers.cell_from(keras.Sequential([first, second])))
    constant = _constant(deq, np.float32(INPUTS))
    norms = [np.linalg.norm(layer.kernel, 2) for layer in (first, second)]
    np.testing.assert_allclose(constant, norms[0] * norms[1] / 4, rtol=1e-3)
    assert norms[0] == pytest.approx(0.9, rel=1e-2)


class HalvingCell(layers.EquilibriumCell):
    """f(z, u) = (z + u) / 2 for a nest."""

    def call(self, state, injection):
        return {name: (state[name] + injection[name]) / 2 for name in state}

    def lipschitz_constant(self, injection):
        return 0.5


def test_norms_include_all_leaves_of_a_state():
    equilibrium = {"map": np.ones((2, 3, 2)), "vector": np.zeros((2, 4))}
    deq = layers.DEQ(HalvingCell(dtype="float64"), _ONE_STEP)
    state = {name: leaf + 2.0 for name, leaf in equilibrium.items()}
    radius = certify(deq, equilibrium, state).radius
    np.testing.assert_allclose(radius, 2 * np.sqrt(10))


def test_padding_does_not_count():
    cell = layers.DenseCell(5, kernel_initializer="zeros", seed=0)
    x = np.random.RandomState(3).normal(size=(2, 3, 4)).astype("float32")
    mask = np.array([[True, True, False], [True, False, False]])
    x *= mask[..., None]
    stem = keras.layers.Masking()
    model = keras.Sequential([keras.Input((3, 4)), stem, layers.DEQ(cell, _ONE_STEP)])
    radius = certify(model, x, np.zeros((2, 3, 5), "float32")).radius
    target = np.tanh(np.asarray(cell.projection(x))) * mask[..., None]
    distance = np.sqrt((target**2).sum(axis=(1, 2)))
    np.testing.assert_allclose(radius, distance, rtol=1e-5)
    # The bound of a monotone cell is for a state without padding.
    monotone = layers.DEQ(layers.MonotoneDenseCell(5), _ONE_STEP)
    model = keras.Sequential([keras.Input((3, 4)), stem, monotone])
    assert _kinds(certify(model, x)) == ["none"] * 2


def test_monotone_cell_has_its_own_bound():
    deq = layers.DEQ(layers.MonotoneDenseCell(5))
    x = tf.constant(INPUTS, tf.float32)
    certificate = certify(deq, x)
    bound = deq.cell.distance_bound(deq.solve(x).value, deq.inject(x))
    np.testing.assert_allclose(certificate.radius, bound, rtol=1e-2)
    assert _kinds(certificate) == ["certified"] * 3 and np.all(certificate.unique)


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
    state = np.zeros((3, 4), "float32")
    assert (deq.problem(x).splitting is not None) == has_splitting
    assert np.all(np.isinf(deq.cell.distance_bound(state, deq.inject(x))))
    assert deq.cell.lipschitz_bound() == float("inf")
    assert _kinds(certify(deq, x)) == ["none"] * 3
    default = layers.DEQ(cls(4)).solver
    assert isinstance(default, solvers.PeacemanRachford) == has_splitting


def test_an_operator_that_is_not_monotone():
    cell = layers.MonotoneConvCell(2, m=0.01, sign=-1)
    deq = layers.DEQ(cell, solvers.FixedPointIteration(2))
    x = np.ones((2, 4, 4, 1), "float32")
    certificate = certify(deq, x)
    assert cell.strong_monotonicity() < 0
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
    deq, inputs, state, _ = _linear(0.5 * np.eye(5), 0.5)
    broken = certify(deq, inputs, state + [[0.0], [np.inf], [0.0]])
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


@pytest.mark.parametrize("state", [np.zeros((3, 4), "f4"), np.zeros((3, 5))])
def test_a_state_of_another_kind_raises(state):
    deq = layers.DEQ(layers.DenseCell(4, dtype="float64"))
    with pytest.raises(ValueError, match="`state` must.*Received"):
        certify(deq, INPUTS, state)
