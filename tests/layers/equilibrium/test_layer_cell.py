"""Cells made by `cell_from`: what they compute, train and save."""

import functools

import keras
import keras_hub
import numpy as np
import pytest
from keras import ops

from deq_keras.layers import DEQ, GroupNormalization, cell_from
from tests.harness import check_layer
from tests.regimes import slow

_RANDOM = np.random.default_rng(0)
VECTORS = _RANDOM.normal(size=(4, 3)).astype("float32")
TEXTS = _RANDOM.normal(size=(4, 5, 8)).astype("float32")
IMAGES = _RANDOM.normal(size=(4, 6, 6, 3)).astype("float32")
_SOLVER = {"class_name": "FixedPointIteration", "max_iter": 6, "tol": None}


@keras.saving.register_keras_serializable("deq_keras_tests")
def gated(state, inputs):
    return state * ops.sigmoid(inputs) + inputs


@keras.saving.register_keras_serializable("deq_keras_tests")
class Bilinear(keras.layers.Layer):
    """Combines state and inputs with a weight of its own."""

    def build(self, state_shape, inputs_shape):
        shape = (inputs_shape[-1], state_shape[-1])
        self.kernel = self.add_weight(shape=shape, initializer="glorot_uniform")

    def call(self, state, inputs):
        return state + ops.matmul(inputs, self.kernel)


@keras.saving.register_keras_serializable("deq_keras_tests")
class Damped(keras.layers.Layer):
    """Without `compute_output_shape`: it keeps the width of its input."""

    def build(self, shape):
        self.kernel = self.add_weight(
            shape=(shape[-1],), initializer=keras.initializers.Constant(0.5)
        )

    def call(self, inputs):
        return ops.tanh(inputs * self.kernel)


def _dense(units=4, **kwargs):
    small = keras.initializers.Orthogonal(0.4, seed=1)
    return keras.layers.Dense(units, "tanh", kernel_initializer=small, **kwargs)


def _sequential(**kwargs):
    return keras.Sequential([_dense(7, **kwargs), _dense(4, **kwargs)])


def _residual(**kwargs):
    inputs = keras.Input((6, 6, 8), dtype=kwargs.get("dtype") and "float32")
    outputs = keras.layers.Conv2D(8, 3, padding="same", **kwargs)(inputs)
    outputs = keras.layers.Add(**kwargs)([inputs, ops.relu(outputs)])
    return keras.Model(inputs, GroupNormalization(2, **kwargs)(outputs))


def _encoder(**kwargs):
    return keras_hub.layers.TransformerEncoder(16, 2, **kwargs)


def _gru(**kwargs):
    return keras.layers.GRU(4, return_sequences=True, **kwargs)


KINDS = {
    "layer": (_dense, "add", VECTORS),
    "function": (lambda **kwargs: _dense(3, **kwargs), gated, VECTORS),
    "injection_layer": (_dense, Bilinear, VECTORS),
    "sequential": (_sequential, "add", VECTORS),
    "residual": (_residual, "add", IMAGES),
    "encoder": (_encoder, "add", TEXTS),
    "encoder_concat": (_encoder, "concat", TEXTS),
    "recurrent": (_gru, "add", TEXTS),
}


def _cell(kind, **kwargs):
    make, injection, _ = KINDS[kind]
    layer = make(**kwargs)
    if isinstance(injection, type):
        injection = injection(**kwargs)
    return cell_from(layer, injection, **kwargs)


def _deq(kind, **kwargs):
    keras.utils.set_random_seed(3)
    return DEQ(_cell(kind, **kwargs), _SOLVER, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_is_a_keras_layer(kind, tmp_path):
    make, inputs = functools.partial(_deq, kind), KINDS[kind][2]
    check_layer(make, inputs, tmp_path)


@pytest.mark.parametrize(
    "units, injection", [(4, "add"), (3, "add"), (4, "concat"), (3, gated)]
)
@pytest.mark.usefixtures("full_float32")
def test_formulas(units, injection):
    layer = _dense(units)
    cell = cell_from(layer, injection)
    injected = cell.inject(VECTORS)
    state = _RANDOM.normal(size=(4, units)).astype("float32")
    if injection == "concat":
        argument = np.concatenate([state, VECTORS], axis=1)
    elif injection is gated:
        argument = gated(state, VECTORS)
    elif units == 3:
        assert cell.projection is None
        argument = state + VECTORS
    else:
        assert len(cell.projection.weights) == 1
        argument = state + VECTORS @ cell.projection.kernel.numpy()
    np.testing.assert_allclose(cell(state, injected), layer(argument), atol=1e-6)
    zeros = np.zeros((4, units))
    np.testing.assert_array_equal(cell.initial_state(injected), zeros)


@pytest.mark.parametrize("kind", ["GRUCell", slow("LSTMCell")])
def test_rnn_cell_repeats_its_step_with_the_same_inputs(kind, tmp_path):
    recurrent = getattr(keras.layers, kind)(5)
    deq = DEQ(cell_from(recurrent), _SOLVER)
    inputs = keras.Input((3,))
    states = keras.tree.flatten(deq(inputs))
    model = keras.Model(inputs, states[0])
    expected = [np.zeros((4, 5), "float32")] * len(states)
    for _ in range(_SOLVER["max_iter"]):
        _, expected = recurrent(VECTORS, expected if len(states) > 1 else expected[0])
        expected = keras.tree.flatten(expected)
    np.testing.assert_allclose(model(VECTORS), expected[0], atol=1e-6)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(VECTORS), model(VECTORS))


def test_concatenation_projects_what_keeps_its_input_width():
    cell = cell_from(_encoder(), "concat")
    injection = cell.inject(TEXTS)
    state = cell.initial_state(injection) + 0.5
    expected = cell.output_projection(cell.layer(ops.concatenate([state, TEXTS], -1)))
    np.testing.assert_allclose(cell(state, injection), expected, atol=1e-6)
    assert cell.output_projection.kernel.shape == (16, 8)


def test_built_layer_keeps_its_width():
    layer = keras.Sequential([_dense(4)])
    layer.build((None, 4))
    assert DEQ(cell_from(layer), _SOLVER)(VECTORS).shape == (4, 4)
    layer = _encoder()
    layer.build((None, None, 12))
    assert DEQ(cell_from(layer, "concat"), _SOLVER)(TEXTS).shape == (4, 5, 4)
    narrow = _encoder()
    narrow.build((None, None, 8))
    with pytest.raises(ValueError, match="8 features, inputs of 8"):
        DEQ(cell_from(narrow, "concat"), _SOLVER)(TEXTS)


def test_layer_without_output_shape_keeps_the_width():
    deq = DEQ(cell_from(Damped()), gradient="implicit")
    value = deq(VECTORS)
    np.testing.assert_allclose(value, np.tanh(0.5 * (value + VECTORS)), atol=5e-3)


@keras.saving.register_keras_serializable("deq_keras_tests")
class AttentionBlock(keras.layers.Layer):
    """Has no argument for a mask; its attention finds the mask at the tensor."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.attention = keras.layers.MultiHeadAttention(2, 4)
        self.supports_masking = True

    def call(self, inputs):
        return ops.tanh(self.attention(inputs, inputs))


@pytest.mark.parametrize(
    "make, injection",
    [
        (_encoder, "add"),
        (lambda: keras.Sequential([_gru()]), "concat"),
        (AttentionBlock, "add"),
    ],
)
def test_padding_does_not_change_a_result(make, injection):
    keras.utils.set_random_seed(2)
    inputs = keras.Input((None,), dtype="int32")
    embedded = keras.layers.Embedding(9, 8, mask_zero=True)(inputs)
    deq = DEQ(cell_from(make(), injection), _SOLVER)
    model = keras.Model(inputs, deq(embedded))
    short = np.array([[3, 1, 2], [5, 6, 7]])
    padded = np.pad(short, ((0, 0), (0, 2)))
    outputs = model(padded)
    np.testing.assert_allclose(outputs[:, :3], model(short), atol=1e-5)
    np.testing.assert_array_equal(outputs[:, 3:], 0)


def test_stacked_rnn_cells():
    cells = [keras.layers.GRUCell(4), keras.layers.LSTMCell(3)]
    deq = DEQ(cell_from(keras.layers.StackedRNNCells(cells)))
    shapes = [leaf.shape for leaf in keras.tree.flatten(deq(VECTORS))]
    assert shapes == [(4, 4), (4, 3), (4, 3)]
