"""A layer whose weights are made at its first call, wherever that is."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import tree

from deq_keras import layers
from tests import harness
from tests.layers.cells import TwoScaleCell

RANDOM = np.random.RandomState(0)
VECTORS = RANDOM.normal(size=(4, 6)).astype("float32")
SEQUENCES = RANDOM.normal(size=(4, 5, 8)).astype("float32")
IMAGES = RANDOM.normal(size=(4, 4, 4, 8)).astype("float32")
SOLVER = {"class_name": "anderson", "max_iter": 4}

CELLS = {
    "dense": (lambda: layers.DenseCell(6, weight_normalization=True), VECTORS),
    "residual-block": (lambda: layers.ResidualBlockCell(12, expansion=1), IMAGES),
    "transformer": (lambda: layers.TransformerCell(8, 2, 16), SEQUENCES),
    "multiscale": (lambda: layers.MultiscaleCell((8, 8), expansion=1), IMAGES),
}


EVERY_CELL = [
    pytest.param(name, marks=() if name == "dense" else pytest.mark.slow)
    for name in CELLS
]


def _layer(name):
    make_cell, inputs = CELLS[name]
    return layers.DEQ(make_cell(), SOLVER, regularizer=None), inputs


def _targets(outputs):
    return tree.map_structure(lambda leaf: np.zeros(leaf.shape, "float32"), outputs)


def _fit(model, inputs, layer):
    model.compile("sgd", "mse")
    model.fit(inputs, np.zeros(len(inputs), "float32"), verbose=0)
    for weight in layer.weights:
        assert np.all(np.isfinite(weight.numpy())), weight.path


class Summed(keras.Model):
    """The mean of all that a layer returns for a sample: Keras wants one output."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def call(self, inputs, training=None):
        leaves = tree.flatten(self.layer(inputs, training=training))
        return sum(
            keras.ops.mean(leaf, axis=range(1, len(leaf.shape))) for leaf in leaves
        )


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


@pytest.mark.parametrize("name", EVERY_CELL)
def test_in_a_function(name):
    layer, inputs = _layer(name)
    function = tf.function(layer)
    first = function(inputs)
    _assert_drawn_from_each_other(layer)
    harness.assert_close(function(inputs), first, 0.0)
    harness.assert_close(layer(inputs), first, 1e-5)


@pytest.mark.parametrize("name", EVERY_CELL)
def test_in_a_sequential_model_without_input(name):
    layer, inputs = _layer(name)
    model = keras.Sequential([layer])
    model.compile("sgd", "mse")
    if name == "multiscale":
        model.predict(inputs, verbose=0)
    else:
        model.fit(inputs, _targets(_layer(name)[0](inputs)), verbose=0)
    assert np.all(np.isfinite(layer.weights[0].numpy()))
    harness.assert_close(model(inputs), model.predict(inputs, verbose=0), 1e-5)


@pytest.mark.parametrize("name", EVERY_CELL)
def test_in_a_subclassed_model_under_a_strategy(name):
    """The prediction creates the weights."""
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        layer, inputs = _layer(name)
        model = Summed(layer)
        model.compile("sgd", "mse")
        model.predict(inputs, verbose=0)
        _assert_drawn_from_each_other(layer)
        _fit(model, inputs, layer)


class OfNamedInputs(keras.Model):
    def __init__(self):
        super().__init__()
        self.layer = layers.DEQ(TwoScaleCell(3), SOLVER, regularizer=None)

    def call(self, inputs, training=None):
        return self.layer(inputs, training=training)["vector"]


@pytest.mark.slow
def test_in_a_subclassed_model_of_named_inputs():
    """Keras infers shapes from a call in training, without values of variables."""
    model = OfNamedInputs()
    model.compile("sgd", "mse")
    model.fit({"x": VECTORS, "y": VECTORS}, VECTORS[:, :3], verbose=0)


@pytest.mark.parametrize("name", EVERY_CELL)
def test_with_loaded_weights(name, tmp_path):
    layer, inputs = _layer(name)
    expected = tf.function(layer)(inputs)
    model = keras.Sequential([layer])
    model(inputs)
    model.save_weights(tmp_path / "model.weights.h5")
    fresh, _ = _layer(name)
    copy = keras.Sequential([fresh])
    copy.build(inputs.shape)
    copy.load_weights(tmp_path / "model.weights.h5")
    harness.assert_close(copy(inputs), expected, 1e-5)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    harness.assert_close(loaded(inputs), expected, 1e-5)
