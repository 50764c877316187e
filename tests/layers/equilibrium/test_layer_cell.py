"""Cells made by `cell_from`: what they compute, and which layers are refused."""

import functools

import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from deq_keras.layers import (
    DEQ,
    DenseCell,
    EquilibriumCell,
    GroupNormalization,
    LayerNormalization,
    VariationalDropout,
    cell_from,
)
from tests.harness import check_layer, functional_model
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


def _decoder(**kwargs):
    return keras_hub.layers.TransformerDecoder(16, 2, **kwargs)


def _gru(**kwargs):
    return keras.layers.GRU(4, return_sequences=True, **kwargs)


KINDS = {
    "layer": (_dense, "add", VECTORS),
    "layer_same_width": (lambda **kwargs: _dense(3, **kwargs), "add", VECTORS),
    "layer_concat": (_dense, "concat", VECTORS),
    "function": (lambda **kwargs: _dense(3, **kwargs), gated, VECTORS),
    "injection_layer": (_dense, Bilinear, VECTORS),
    "sequential": (_sequential, "add", VECTORS),
    "residual": (_residual, "add", IMAGES),
    "encoder": (_encoder, "add", TEXTS),
    "encoder_concat": (_encoder, "concat", TEXTS),
    "decoder": (_decoder, "add", TEXTS),
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
def test_cells_pass_the_checks_of_all_layers(kind, tmp_path):
    make, inputs = functools.partial(_deq, kind), KINDS[kind][2]
    check_layer(make, inputs, tmp_path)


def test_formulas():
    layer = _dense(4)
    cell = cell_from(layer)
    injection = cell.inject(VECTORS)
    state = _RANDOM.normal(size=(4, 4)).astype("float32")
    kernel = cell.projection.kernel.numpy()
    assert len(cell.projection.weights) == 1
    np.testing.assert_allclose(
        cell(state, injection), layer(state + VECTORS @ kernel), atol=1e-6
    )
    np.testing.assert_array_equal(cell.initial_state(injection), np.zeros((4, 4)))

    layer = _dense(4)
    cell = cell_from(layer, "concat")
    injection = cell.inject(VECTORS)
    expected = layer(np.concatenate([state, VECTORS], axis=1))
    np.testing.assert_allclose(cell(state, injection), expected, atol=1e-6)

    layer = _dense(3)
    cell = cell_from(layer)
    injection = cell.inject(VECTORS)
    assert cell.projection is None
    np.testing.assert_allclose(
        cell(state[:, :3], injection), layer(state[:, :3] + VECTORS), atol=1e-6
    )

    cell = cell_from(_dense(3), gated)
    injection = cell.inject(VECTORS)
    expected = cell.layer(gated(state[:, :3], VECTORS))
    np.testing.assert_allclose(cell(state[:, :3], injection), expected, atol=1e-6)


@pytest.mark.parametrize("kind", ["GRUCell", slow("LSTMCell")])
def test_an_rnn_cell_repeats_its_step_with_the_same_inputs(kind, tmp_path):
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
    model.compile("adam", "mse")
    model.fit(VECTORS, np.ones((4, 5)), verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(VECTORS), model(VECTORS))


def test_rnn_cells_that_cannot_be_used_are_refused():
    with pytest.raises(ValueError, match="Leave out `injection`.*'concat'"):
        cell_from(keras.layers.GRUCell(3), "concat")
    with pytest.raises(ValueError, match="cell=GRUCell.*cell_from"):
        DEQ(keras.layers.GRUCell(3))
    with pytest.raises(ValueError, match=r"TimeDistributed.*Received:.*\(2, 5, 3\)"):
        DEQ(cell_from(keras.layers.GRUCell(3)))(np.ones((2, 5, 3), "float32"))
    with pytest.raises(ValueError, match="must not have dropout"):
        cell_from(keras.layers.GRUCell(3, dropout=0.5))


def test_concatenation_projects_what_keeps_its_input_width():
    cell = cell_from(_encoder(), "concat")
    injection = cell.inject(TEXTS)
    state = cell.initial_state(injection) + 0.5
    expected = cell.output_projection(cell.layer(ops.concatenate([state, TEXTS], -1)))
    np.testing.assert_allclose(cell(state, injection), expected, atol=1e-6)
    assert cell.output_projection.kernel.shape == (16, 8)


@pytest.mark.parametrize(
    "injection, width, units",
    [("add", 4, 4), ("concat", 7, 4)],
)
def test_a_built_layer_keeps_its_width(injection, width, units):
    layer = _encoder() if injection == "concat" else _dense(4)
    layer = keras.Sequential([layer]) if injection == "add" else _dense(units)
    layer.build((None, width))
    deq = DEQ(cell_from(layer, injection), _SOLVER)
    assert deq(VECTORS).shape == (4, units)


def test_a_built_block_with_concatenation():
    layer = _encoder()
    layer.build((None, None, 12))
    assert DEQ(cell_from(layer, "concat"), _SOLVER)(TEXTS).shape == (4, 5, 4)
    narrow = _encoder()
    narrow.build((None, None, 8))
    with pytest.raises(ValueError, match="8 features, inputs of 8"):
        DEQ(cell_from(narrow, "concat"), _SOLVER)(TEXTS)


def test_a_layer_without_output_shape_keeps_the_width_of_the_inputs():
    deq = DEQ(cell_from(Damped()), gradient="implicit")
    value = deq(VECTORS)
    np.testing.assert_allclose(value, np.tanh(0.5 * (value + VECTORS)), atol=5e-3)


@pytest.mark.parametrize("kind", ["layer", "sequential", "residual", "encoder"])
def test_mixed_precision_is_that_of_the_layer(kind):
    keras.config.set_dtype_policy("mixed_bfloat16")
    make, injection, inputs = KINDS[kind]
    cell = cell_from(make(), injection)
    assert cell.dtype_policy.name == "mixed_bfloat16"
    assert DEQ(cell, _SOLVER)(inputs).dtype == "bfloat16"
    assert cell.weights[0].dtype == "float32"


@keras.saving.register_keras_serializable("deq_keras_tests")
class AttentionBlock(keras.layers.Layer):
    """Has no argument for a mask; its attention finds the mask at the tensor."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.attention = keras.layers.MultiHeadAttention(2, 4)
        self.supports_masking = True

    def call(self, inputs):
        return ops.tanh(self.attention(inputs, inputs))


MASKED = {
    "encoder": _encoder,
    "decoder": _decoder,
    "sequential": lambda: keras.Sequential([_gru()]),
    "no_argument": AttentionBlock,
}


@pytest.mark.parametrize(
    "kind, injection",
    [
        ("encoder", "add"),
        ("decoder", "concat"),
        ("sequential", "concat"),
        ("no_argument", "add"),
    ],
)
def test_padding_does_not_change_a_result(kind, injection):
    keras.utils.set_random_seed(2)
    inputs = keras.Input((None,), dtype="int32")
    embedded = keras.layers.Embedding(9, 8, mask_zero=True)(inputs)
    deq = DEQ(cell_from(MASKED[kind](), injection), _SOLVER)
    model = keras.Model(inputs, deq(embedded))
    short = np.array([[3, 1, 2], [5, 6, 7]])
    padded = np.pad(short, ((0, 0), (0, 2)))
    outputs = model(padded)
    np.testing.assert_allclose(outputs[:, :3], model(short), atol=1e-5)
    np.testing.assert_array_equal(outputs[:, 3:], 0)


@pytest.mark.slow
def test_trains_with_padding():
    model = keras.Sequential(
        [
            keras.layers.Embedding(9, 8, mask_zero=True),
            DEQ(cell_from(_encoder()), _SOLVER),
        ]
    )
    model.compile("adam", "mse")
    tokens = np.array([[3, 1, 2, 0], [5, 6, 0, 0]])
    history = model.fit(tokens, np.zeros((2, 4, 8)), verbose=0).history
    assert np.isfinite(history["loss"][0])


REFUSED = {
    "BatchNormalization": (
        lambda: keras.Sequential([_dense(), keras.layers.BatchNormalization()]),
        "couples the samples.*GroupNormalization.*batch_normalization",
    ),
    "Dropout": (
        lambda: keras.Sequential([_dense(), keras.layers.Dropout(0.1)]),
        "random numbers.*VariationalDropout.*'dropout'",
    ),
    "noise": (lambda: keras.layers.GaussianNoise(0.1), "random numbers"),
    "VariationalDropout": (lambda: VariationalDropout(0.1), "in `inject`"),
    "SpectralNormalization": (
        lambda: keras.layers.SpectralNormalization(keras.layers.Dense(4)),
        "updates its vectors.*SpectrallyNormalizedDense",
    ),
    "stateful": (
        lambda: keras.layers.GRU(4, return_sequences=True, stateful=True),
        "stateful=False",
    ),
    "return_state": (
        lambda: keras.layers.GRU(4, return_sequences=True, return_state=True),
        "return_state=False",
    ),
    "several_arguments": (
        lambda: keras.layers.MultiHeadAttention(2, 4),
        "one tensor.*MultiHeadAttention.*2 inputs",
    ),
    "several_inputs": (
        lambda: keras.Model(
            [(a := keras.Input((3,))), (b := keras.Input((3,)))], a + b
        ),
        "functional model of these two inputs to DEQ itself.*2 inputs",
    ),
    "cell": (lambda: DenseCell(4), "Pass an EquilibriumCell.*to DEQ itself"),
    "function": (lambda: ops.tanh, "must be a Keras layer or model.*function"),
}


@pytest.mark.parametrize("make, message", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_a_cell_is_refused_at_once(make, message):
    with pytest.raises(ValueError, match=message):
        cell_from(make())


def test_dropout_that_is_created_when_a_block_is_built_is_refused():
    for make in (_encoder, _decoder):
        DEQ(cell_from(make(dropout=0.0)), _SOLVER)(TEXTS)
        with pytest.raises(ValueError, match="random numbers.*VariationalDropout"):
            DEQ(cell_from(make(dropout=0.1)), _SOLVER)(TEXTS)


CHANGED = {
    "unpadded": (lambda: keras.layers.Conv2D(3, 3), IMAGES),
    "strides": (lambda: keras.layers.Conv2D(3, 3, 2, padding="same"), IMAGES),
    "pooling": (keras.layers.GlobalAveragePooling2D, IMAGES),
    "flatten": (keras.layers.Flatten, IMAGES),
    "last_state_only": (lambda: keras.layers.GRU(8), TEXTS),
}


@pytest.mark.parametrize("injection", ["add", "concat"])
@pytest.mark.parametrize("make, inputs", CHANGED.values(), ids=CHANGED)
def test_another_axis_than_the_last_must_not_change(make, inputs, injection):
    with pytest.raises(ValueError, match="return the shape of the state.*Expected"):
        DEQ(cell_from(make(), injection))(inputs)


def test_errors_of_inputs_and_injections():
    with pytest.raises(ValueError, match='"add", "concat", or a callable.*multiply'):
        cell_from(_dense(), "multiply")
    with pytest.raises(ValueError, match="one tensor of inputs.*dict"):
        DEQ(cell_from(_dense()))({"a": VECTORS, "b": VECTORS})
    for inputs in (VECTORS[:, 0], keras.Input((None,))):
        with pytest.raises(ValueError, match=r"shape \(batch, \.\.\., features\)"):
            DEQ(cell_from(_dense()))(inputs)
    with pytest.raises(ValueError, match="failed when it was applied.*Error"):
        DEQ(cell_from(keras.layers.Add()))(VECTORS)
    with pytest.raises(ValueError, match="must return the shape of the state"):
        DEQ(cell_from(Damped(), lambda z, x: ops.concatenate([z, x], -1)))(VECTORS)
    with pytest.raises(ValueError, match="must return one tensor"):
        DEQ(cell_from(keras.layers.Lambda(lambda x: (x, x))))(VECTORS)


def test_cells_are_equilibrium_cells_that_the_layer_recommends():
    assert isinstance(cell_from(_dense()), EquilibriumCell)
    with pytest.raises(ValueError, match=r"cell_from\(layer\)"):
        DEQ(_dense())


def test_norms_of_the_library_allow_jacobian_penalties():
    block = keras.Sequential([_dense(4), LayerNormalization()])
    deq = DEQ(cell_from(block), gradient="implicit", regularizer="jacobian")
    model = functional_model(deq, VECTORS)
    model.compile("adam", "mse", run_eagerly=True)
    model.fit(VECTORS, np.zeros((4, 4)), verbose=0)


def test_eager_building_creates_all_weights():
    deq = DEQ(cell_from(_sequential()))
    deq.build((None, 3))
    assert deq.cell.layer.built
    assert len(deq.weights) - len(deq.non_trainable_weights) == 5
    assert tf.function(deq)(tf.constant(VECTORS)).shape == (4, 4)
