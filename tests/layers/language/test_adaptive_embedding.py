import keras
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


def _formula(layer, ids):
    starts = [0] if layer.div_val == 1 else [0, *layer.cutoffs]
    outputs = np.zeros((*ids.shape, layer.output_dim))
    for position, token in np.ndenumerate(ids):
        i = np.searchsorted(starts, token, side="right") - 1
        row = layer.tables[i].numpy()[token - starts[i]]
        if layer.projections[i] is not None:
            row = row @ layer.projections[i].numpy()
        outputs[position] = row * np.sqrt(layer.output_dim)
    return outputs


@pytest.mark.parametrize("name", SIZES)
def test_formula(name):
    layer, ids = _layer(name, dtype="float64"), _ids()
    np.testing.assert_allclose(layer(ids), _formula(layer, ids), atol=1e-12)


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


@pytest.mark.parametrize(
    "name, tables, projections",
    [
        ("plain", [(20, 8)], [None]),
        ("projected", [(20, 6)], [(6, 8)]),
        ("one table", [(20, 6)], [(6, 8)]),
        ("one bucket", [(20, 8)], [(8, 8)]),
        ("adaptive", [(4, 7), (6, 3), (10, 1)], [(7, 8), (3, 8), (1, 8)]),
    ],
)
def test_weights(name, tables, projections):
    layer = _layer(name)
    assert [tuple(table.shape) for table in layer.tables] == tables
    shapes = [None if p is None else tuple(p.shape) for p in layer.projections]
    assert shapes == projections
    num_projections = len(projections) - projections.count(None)
    assert len(layer.trainable_weights) == len(tables) + num_projections


def test_bucket_bounds():
    assert _layer("one table").bucket_bounds == [(0, 4), (4, 10), (10, 20)]
    assert _layer("plain").bucket_bounds == [(0, 20)]


def test_initial_weights():
    layer = AdaptiveEmbedding(4000, 64, cutoffs=(2000,), div_val=1)
    layer.build((None, None))
    assert abs(np.std(layer.tables[0].numpy()) - 0.01) < 1e-4
    twins = AdaptiveEmbedding(64, 64, div_val=2)  # Table and projection: one shape.
    twins.build((None, None))
    assert np.any(twins.tables[0].numpy() != twins.projections[0].numpy())


@pytest.mark.parametrize("name", ["adaptive", "one table"])
def test_gradients(name, regime):
    """Against a lookup by a product with one-hot vectors."""
    layer, ids = _layer(name, dtype="float64"), tf.constant([[3, 4, 4], [9, 10, 19]])
    cotangent = np.random.default_rng(2).normal(size=(2, 3, 8))

    def gradients(function):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(function() * cotangent)
        return [
            tf.convert_to_tensor(gradient)
            for gradient in tape.gradient(loss, [w.value for w in layer.weights])
        ]

    def lookup():
        rows = [t.value for t in layer.tables]
        rows = [r @ p.value for r, p in zip(rows, layer.projections)]
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


@pytest.mark.parametrize("jit_compile", [False, True])
def test_dynamic_batch_and_length(jit_compile):
    layer = _layer("adaptive")
    signature = [tf.TensorSpec((None, None), "int64")]
    compiled = tf.function(layer, input_signature=signature, jit_compile=jit_compile)
    for shape in ((2, 20), (3, 20), (1, 20)):
        ids = _ids(shape).astype("int64")[:, : 20 // shape[0]]
        np.testing.assert_allclose(compiled(ids), layer(ids), atol=1e-6)


@pytest.mark.parametrize("dtype", ["int64", "uint8", "int16"])
def test_integer_dtypes(dtype):
    layer = AdaptiveEmbedding(300, 4)  # More tokens than a uint8 can count.
    ids = np.array([[0, 17], [99, 127]])
    np.testing.assert_array_equal(layer(ids.astype(dtype)), layer(ids))


@pytest.mark.parametrize("token", [-1, 20])
def test_ids_out_of_range(token, exact_regime):
    call = exact_regime(_layer("adaptive").__call__)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"range \[0, 20\)"):
        call(tf.constant([[0, 1, token]]))


def test_float_ids():
    layer = _layer("plain")
    for ids in (np.ones((2, 3)), keras.Input((3,))):
        with pytest.raises(ValueError, match="must be integers.*dtype='int32'"):
            layer(ids)


def test_bucket_without_dimensions():
    with pytest.raises(ValueError, match="without dimensions.*Received: div_val=3"):
        AdaptiveEmbedding(20, 8, cutoffs=(4, 10), div_val=3)
