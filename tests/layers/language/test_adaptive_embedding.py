"""`AdaptiveEmbedding` computes the reference's vectors and gradients."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras.layers import AdaptiveEmbedding
from tests import harness
from tests.golden import arrays

SIZES = {
    "plain": {"embedding_dim": 8},
    "projected": {"embedding_dim": 6, "output_dim": 8},
    "one table": {"embedding_dim": 6, "output_dim": 8, "cutoffs": (4, 10)},
    "one bucket": {"embedding_dim": 8, "div_val": 2},
    "adaptive": {"embedding_dim": 7, "output_dim": 8, "cutoffs": (4, 10), "div_val": 2},
    "single tokens": {"embedding_dim": 8, "cutoffs": (1, 2, 19), "div_val": 2},
}
VARIANTS = {
    "a1_pre1_wn1": {"cutoffs": (60, 120)},
    "a4_pre0_wn1": {"cutoffs": (60, 120), "div_val": 4},
    "plain": {},
}


def _layer(name, **kwargs):
    layer = AdaptiveEmbedding(20, **SIZES[name], **kwargs)
    layer.build((None, None))
    random = np.random.default_rng(1)
    layer.set_weights([random.normal(size=w.shape) for w in layer.weights])
    return layer


def _ids(shape=(4, 20), seed=0):
    """Every token of the vocabulary, and others."""
    ids = np.random.default_rng(seed).integers(0, 20, shape).astype("int32")
    ids[0] = np.arange(20)
    return ids


@pytest.mark.parametrize("variant", VARIANTS)
def test_reference_parity(variant):
    golden = arrays.load("adaptive")
    layer = AdaptiveEmbedding(200, 32, **VARIANTS[variant], dtype="float64")
    layer.build((None, None))
    prefix = f"{variant}/param/word_emb"
    for i, table in enumerate(layer.tables):
        table.assign(golden[f"{prefix}.emb_layers.{i}.weight"])
    for i, projection in enumerate(layer.projections):
        if projection is not None:
            projection.assign(golden[f"{prefix}.emb_projs.{i}.weight"].T)
    outputs = layer(golden[f"{variant}/s0/data"].T)
    expected = golden[f"{variant}/s0/word_emb"]
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-10)


def test_initial_weights():
    layer = AdaptiveEmbedding(4000, 64, cutoffs=(2000,), div_val=1)
    layer.build((None, None))
    assert abs(np.std(layer.tables[0].numpy()) - 0.01) < 1e-4
    twins = AdaptiveEmbedding(64, 64, div_val=2)  # Table and projection: one shape.
    twins.build((None, None))
    assert np.any(twins.tables[0].numpy() != twins.projections[0].numpy())


@pytest.mark.parametrize(
    "name, regime",
    [*((name, "eager") for name in SIZES), ("adaptive", "graph"), ("adaptive", "xla")],
    indirect=["regime"],
)
def test_values_and_gradients(name, regime):
    """Against a lookup by a product with one-hot vectors."""
    layer, ids = _layer(name, dtype="float64"), tf.constant(_ids())
    cotangent = np.random.default_rng(2).normal(size=(4, 20, 8))

    def gradients(function):
        with tf.GradientTape() as tape:
            value = function()
            loss = tf.reduce_sum(value * cotangent)
        slopes = tape.gradient(loss, [w.value for w in layer.weights])
        return [value, *map(tf.convert_to_tensor, slopes)]

    def lookup():
        rows = [
            table.value if projection is None else table.value @ projection.value
            for table, projection in zip(layer.tables, layer.projections, strict=True)
        ]
        one_hot = tf.one_hot(ids, 20, dtype="float64")
        return one_hot @ tf.concat(rows, axis=0) * np.sqrt(8)

    ours = regime(lambda: gradients(lambda: layer(ids)))()
    for actual, expected in zip(ours, gradients(lookup), strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-12)


@pytest.mark.slow
def test_layer_contract(tmp_path):
    def make_layer(**kwargs):
        return AdaptiveEmbedding(20, **SIZES["adaptive"], **kwargs)

    harness.check_layer(make_layer, _ids(), tmp_path)


def test_more_tokens_than_an_integer_type_counts():
    layer = AdaptiveEmbedding(300, 4)
    ids = np.array([[0, 17], [99, 127]])
    np.testing.assert_array_equal(layer(ids.astype("uint8")), layer(ids))


@pytest.mark.parametrize("token", [-1, 20])
def test_ids_out_of_range(token, exact_regime):
    call = exact_regime(_layer("adaptive").__call__)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"range \[0, 20\)"):
        call(tf.constant([[0, 1, token]]))


@pytest.mark.parametrize("cutoffs", [(), (3,)])
def test_gradient_adds_the_rows_of_a_repeated_token(cutoffs):
    layer = AdaptiveEmbedding(6, 4, cutoffs=cutoffs, div_val=2)
    token_ids = tf.constant([[1, 2, 1], [5, 1, 1]])
    layer.build(token_ids.shape)
    slope, *_ = harness.gradients(lambda: layer(token_ids, training=True), layer.tables)
    assert tf.is_tensor(slope)
    np.testing.assert_allclose(slope[1], 4 * slope[2], rtol=1e-6)
