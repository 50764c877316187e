"""A layer creates its weights at its first call, and is freed with its model."""

import gc
import warnings
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import tree

from deq_keras import gradients, layers, solvers
from deq_keras.core.custom_gradient import custom_gradient
from tests import harness
from tests.layers.cells import TwoScaleCell
from tests.regimes import slow

RANDOM = np.random.RandomState(0)
VECTORS = RANDOM.normal(size=(4, 6)).astype("float32")
SEQUENCES = RANDOM.normal(size=(4, 5, 8)).astype("float32")
IMAGES = RANDOM.normal(size=(4, 4, 4, 8)).astype("float32")
CELLS = {
    "dense": (lambda: layers.DenseCell(6, weight_normalization=True), VECTORS),
    "residual_block": (lambda: layers.ResidualBlockCell(12, expansion=1), IMAGES),
    "transformer": (lambda: layers.TransformerCell(8, 2, 16), SEQUENCES),
    "multiscale": (lambda: layers.MultiscaleCell((8, 8), expansion=1), IMAGES),
}
SOLVER = {"class_name": "fixed_point_iteration", "max_iter": 4}


def _layer(name):
    make_cell, inputs = CELLS[name]
    return layers.DEQ(make_cell(), SOLVER, "phantom", None), inputs


def _assert_drawn_from_each_other(layer):
    """A gain is the length of the direction that was really drawn."""
    normalized = [
        sub
        for sub in layer._flatten_layers()
        if hasattr(sub, "gain") and hasattr(sub, "direction")
    ]
    assert normalized
    for sub in normalized:
        direction = sub.direction.numpy()
        axes = tuple(range(direction.ndim - 1))
        norm = np.sqrt(np.sum(direction**2, axis=axes))
        np.testing.assert_allclose(sub.gain.numpy(), norm, rtol=1e-5)


@pytest.mark.parametrize(
    "name", ["dense", slow("residual_block"), slow("transformer"), slow("multiscale")]
)
@pytest.mark.usefixtures("full_float32")
def test_in_a_function_and_with_loaded_weights(name, tmp_path):
    layer, inputs = _layer(name)
    function = tf.function(layer)
    expected = function(inputs)
    _assert_drawn_from_each_other(layer)
    harness.assert_close(function(inputs), expected, 0.0)
    harness.assert_close(layer(inputs), expected, 1e-5)
    model = keras.Sequential([layer])
    model(inputs)
    model.save_weights(tmp_path / "model.weights.h5")
    copy = keras.Sequential([_layer(name)[0]])
    copy.build(inputs.shape)
    copy.load_weights(tmp_path / "model.weights.h5")
    harness.assert_close(copy(inputs), expected, 1e-5)


class Subclassed(keras.Model):
    """The mean of all that a layer returns for a sample."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def call(self, inputs, training=None):
        leaves = tree.flatten(self.layer(inputs, training=training))
        return sum(keras.ops.mean(leaf, range(1, len(leaf.shape))) for leaf in leaves)


@pytest.mark.parametrize("name", ["dense", slow("multiscale")])
def test_in_a_subclassed_model_under_a_strategy(name):
    """The prediction creates the weights."""
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        layer, inputs = _layer(name)
        model = Subclassed(layer)
        model.compile("sgd", "mse")
        model.predict(inputs, verbose=0)
    _assert_drawn_from_each_other(layer)


@pytest.mark.slow
def test_in_a_subclassed_model_of_named_inputs():
    """Keras infers shapes from a call in training, without values of variables."""
    model = Subclassed(layers.DEQ(TwoScaleCell(3), SOLVER, regularizer=None))
    model.compile("sgd", "mse")
    model.fit({"x": VECTORS, "y": VECTORS}, VECTORS[:, 0], verbose=0)


class InAFunction(keras.Model):
    """A model whose `call` is a `tf.function`."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.head = layer, keras.layers.Dense(1)

    @tf.function
    def call(self, inputs, training=False):
        return self.head(self.layer(inputs, training=training))


@pytest.mark.parametrize("is_called", [False, True])
def test_in_a_model_whose_call_is_a_function(is_called):
    layer = layers.DEQ(layers.DenseCell(6), SOLVER, "phantom", None, name="deq")
    model = InAFunction(layer)
    assert model.predict(VECTORS, verbose=0).shape == (4, 1)
    model = InAFunction(layer)
    if is_called:  # Else Keras traces the step where it drops updates.
        expected = model.head(layer(VECTORS))
        harness.assert_close(model(VECTORS), expected, 1e-6)
    model.compile("sgd", "mse")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras: no gradients for the head.
        history = model.fit(VECTORS, VECTORS[:, :1], verbose=0).history
    names = {"deq_evaluations", "deq_residual", "deq_converged", "deq_failed"}
    assert set(history) == {"loss"} | (names if is_called else set())
    assert np.all(np.isfinite(list(history.values())))


@keras.saving.register_keras_serializable("tests")
class OptionalCell(layers.EquilibriumCell):
    """z = tanh(z) / 2 + a + b, without b if it is absent."""

    def inject(self, inputs, training=False):
        a, b = inputs["a"], inputs["b"]
        return a if b is None else a + b

    def call(self, state, injection):
        return 0.5 * keras.ops.tanh(state) + injection


def test_inputs_that_are_products_or_absent(tmp_path):
    """Keras marks a product with a number as sparse."""
    a, b = keras.Input((6,), name="a"), keras.Input((6,), name="b", optional=True)
    layer = layers.DEQ(OptionalCell(), solvers.Anderson(tol=1e-6))
    model = keras.Model({"a": a, "b": b}, layer({"a": 0.5 * a, "b": b}))
    model.save(tmp_path / "model.keras")
    for one in (model, keras.models.load_model(tmp_path / "model.keras")):
        for b in (None, VECTORS):
            state, injected = one({"a": VECTORS, "b": b}).numpy(), 0.5 * VECTORS
            injected += 0.0 if b is None else b
            bad = np.abs(0.5 * np.tanh(state) + injected - state)
            assert bad.max() < 1e-5
    assert layer({"a": VECTORS, "b": None}, training=True).shape == (4, 6)
    inputs = keras.Input((6,), sparse=True)
    model = keras.Model(inputs, layers.DEQ(layers.DenseCell(6))(inputs))
    with pytest.raises(ValueError, match="dense"):
        model(tf.sparse.from_dense(VECTORS))


class GroupNormalizedCell(layers.EquilibriumCell):
    def build(self, state_shape, injection_shape):
        self.norm = layers.GroupNormalization(groups=2)
        self.norm.build(state_shape)

    def call(self, state, injection):
        return 0.5 * self.norm(state + injection)


@pytest.mark.slow
def test_fitted_layers_are_freed():
    """Layers that together use every custom gradient."""

    def fitted():
        components = {
            "implicit": {"gradient": "implicit"},
            "reversible": {"gradient": "reversible"},
            "steps": {"gradient": gradients.TruncatedGradient(3, 0, checkpoints=3)},
            "checkpoints": {"gradient": gradients.UnrolledGradient(checkpoints=5)},
            "penalty": {"regularizer": "jacobian"},
        }
        deqs = [
            layers.DEQ(layers.DenseCell(8), name=name, **arguments)
            for name, arguments in components.items()
        ]
        deqs.append(layers.DEQ(GroupNormalizedCell(), name="group_norm"))
        deqs.append(layers.DEQ(layers.MonotoneDenseCell(8), name="splitting"))
        inputs = keras.Input((8,))
        states = keras.layers.Add()([layer(inputs) for layer in deqs])
        model = keras.Model(inputs, keras.layers.Dense(1)(states))
        model.compile("sgd", "mse")
        x = np.ones((4, 8), "float32")
        model.fit(x, x[:, :1], verbose=0)
        return {deq.name: (weakref.ref(deq), weakref.ref(deq.cell)) for deq in deqs}

    references = fitted()
    keras.backend.clear_session()
    gc.collect()
    gc.collect()
    for name, (layer, cell) in references.items():
        assert layer() is None and cell() is None, name


def test_graph_of_a_custom_gradient_is_freed():
    """`tf.custom_gradient` keeps graphs alive."""

    def double(x):
        square = x * x
        return custom_gradient(lambda x: (x + x, lambda dy: [dy * square]))(x)

    def trace():
        function = tf.function(double, autograph=False)
        spec = tf.TensorSpec([], tf.float32)
        return weakref.ref(function.get_concrete_function(spec).graph)

    graph = trace()
    gc.collect()
    assert graph() is None
