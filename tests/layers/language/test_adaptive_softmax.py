"""`AdaptiveSoftmax` computes the reference's losses, gradients and tied weights."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras.layers import AdaptiveEmbedding, AdaptiveSoftmax
from tests import harness
from tests.golden import arrays

SIZES = {
    "plain": {"embedding_dim": 8},
    "projected": {"embedding_dim": 6, "output_dim": 8},
    "one table": {"embedding_dim": 8, "cutoffs": (4, 10)},
    "one projected table": {"embedding_dim": 6, "output_dim": 8, "cutoffs": (4, 10)},
    "adaptive": {"embedding_dim": 7, "output_dim": 8, "cutoffs": (4, 10), "div_val": 2},
}
VARIANTS = {
    "a1_pre1_wn1": {"cutoffs": (60, 120)},
    "a4_pre0_wn1": {"cutoffs": (60, 120), "div_val": 4},
    "plain": {},
}


def _softmax(name="adaptive", dtype="float32", **kwargs):
    embedding = AdaptiveEmbedding(20, **SIZES[name], dtype=dtype)
    layer = AdaptiveSoftmax(embedding, dtype=dtype, **kwargs)
    layer.build((None, None, 8))
    random = np.random.default_rng(1)
    layer.set_weights([random.normal(size=w.shape) for w in layer.weights])
    return layer


def _hidden(batch=3, length=20, dtype="float64"):
    shape = (batch, length, 8)
    return np.random.default_rng(2).normal(size=shape).astype(dtype)


def _targets(batch=3, length=20):
    """Every token of the vocabulary, in different orders."""
    random = np.random.default_rng(3)
    tokens = np.stack([random.permutation(20) for _ in range(batch)])
    return tokens[:, :length].astype("int32")


def _golden_layer(variant):
    golden = arrays.load("adaptive")
    embedding = AdaptiveEmbedding(200, 32, **VARIANTS[variant], dtype="float64")
    layer = AdaptiveSoftmax(embedding, dtype="float64")
    layer.build((None, None, 32))
    for i, table in enumerate(layer.tables):
        table.assign(golden[f"{variant}/param/word_emb.emb_layers.{i}.weight"])
    for name, variable, transposed in _golden_names(layer):
        value = golden[f"{variant}/param/crit.{name}"]
        variable.assign(value.T if transposed else value)
    return layer


def _golden_names(layer):
    """(name in the reference, variable, whether it is transposed) but for tables."""
    names = [(f"out_layers.{i}.bias", bias, False) for i, bias in _count(layer.biases)]
    names += [
        (f"out_projs.{i}.weight", projection, True)
        for i, projection in _count(layer.projections)
        if projection is not None
    ]
    if layer.num_clusters:
        names += [("cluster_weight", layer.cluster_weight, False)]
        names += [("cluster_bias", layer.cluster_bias, False)]
    return names


def _count(sequence):
    return list(enumerate(sequence))


@pytest.mark.parametrize("variant", VARIANTS)
def test_reference_parity(variant):
    golden, layer = arrays.load("adaptive"), _golden_layer(variant)
    hidden = tf.constant(golden[f"{variant}/s0/core_out"].transpose(1, 0, 2))
    names = _golden_names(layer)
    with tf.GradientTape() as tape:
        tape.watch(hidden)
        losses = layer.loss(hidden, golden[f"{variant}/s0/target"].T)
        loss = tf.reduce_mean(losses)
    sources = [hidden, *(variable.value for _, variable, _ in names)]
    of_hidden, *of_weights = tape.gradient(loss, sources)
    expected = golden[f"{variant}/s0/loss_ordered"].T
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-10)
    expected = golden[f"{variant}/s0/dLdz"].transpose(0, 2, 1)
    np.testing.assert_allclose(of_hidden, expected, rtol=0, atol=1e-10)
    for (name, _, transposed), gradient in zip(names, of_weights, strict=True):
        expected = golden[f"{variant}/s0/grad/crit.{name}"]
        expected = expected.T if transposed else expected
        np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-10)


def _loss_and_gradients(function, layer, hidden):
    with tf.GradientTape() as tape:
        tape.watch(hidden)
        losses = function(hidden)
        total = tf.reduce_sum(losses * tf.range(1.0, 21.0, dtype=losses.dtype))
    sources = [hidden, *(w.value for w in layer.trainable_weights)]
    gradients = tape.gradient(total, sources, unconnected_gradients="zero")
    return losses, [tf.convert_to_tensor(gradient) for gradient in gradients]


@pytest.mark.parametrize(
    "name, regime, arguments",
    [
        ("adaptive", "graph", {}),
        ("adaptive", "xla", {}),
        *((name, "eager", {}) for name in SIZES),
        ("adaptive", "eager", {"tie_weights": False}),
    ],
    indirect=["regime"],
)
def test_loss_agrees_with_probabilities(name, regime, arguments):
    layer, targets = _softmax(name, "float64", **arguments), _targets()
    hidden = tf.constant(_hidden())
    sums = np.exp(layer(10 * hidden)).sum(axis=-1)
    np.testing.assert_allclose(sums, 1, atol=1e-12)

    def of_call(hidden):
        return -tf.gather(layer(hidden), targets, batch_dims=2)

    def of_loss(hidden):
        return _loss_and_gradients(lambda h: layer.loss(h, targets), layer, hidden)

    losses, gradients = regime(of_loss)(hidden)
    expected_losses, expected = _loss_and_gradients(of_call, layer, hidden)
    np.testing.assert_allclose(losses, expected_losses, atol=1e-12)
    for one, two in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-11)


def test_loss_never_forms_all_logits():
    """The largest tensor of a graph has the columns of one bucket only."""
    layer = _softmax()
    signature = tf.TensorSpec((None, None, 8)), tf.TensorSpec((None, None), "int32")
    graph = tf.function(layer.loss).get_concrete_function(*signature).graph
    shapes = [tensor.shape for op in graph.get_operations() for tensor in op.outputs]
    columns = {shape[-1] for shape in shapes if shape.rank and shape[0] is None}
    assert {6, 10} <= columns  # The head of 4 + 2, the last tail.
    assert 20 not in columns


def test_all_targets_in_one_bucket():
    """In graphs of unknown sizes."""
    layer = _softmax()
    signature = [tf.TensorSpec((None, None, 8)), tf.TensorSpec((None, None), "int32")]
    loss = tf.function(layer.loss, input_signature=signature)
    call = tf.function(layer, input_signature=signature[:1])
    for batch, token in enumerate((3, 4, 19), 1):
        hidden, targets = _hidden(batch, 3, "float32"), tf.fill((batch, 3), token)
        expected = -layer(hidden)[..., token]
        np.testing.assert_allclose(loss(hidden, targets), expected, atol=1e-5)
        np.testing.assert_allclose(-call(hidden)[..., token], expected, atol=1e-5)


def test_mixed_precision():
    exact, layer = _softmax(), _softmax(dtype="mixed_bfloat16")
    hidden, targets = _hidden(dtype="float32"), _targets()
    log_probabilities = layer(hidden)
    assert log_probabilities.dtype == layer.loss(hidden, targets).dtype == "float32"
    assert {weight.dtype for weight in layer.weights} == {"float32"}
    # A logit near 50 is rounded to a multiple of 1/4.
    np.testing.assert_allclose(log_probabilities, exact(hidden), rtol=0.05, atol=0.1)
    np.testing.assert_allclose(
        layer.loss(hidden, targets),
        -tf.gather(log_probabilities, targets, batch_dims=2),
        atol=0.1,
    )


def _language_model(**kwargs):
    ids = keras.Input((None,), dtype="int32")
    embedding = AdaptiveEmbedding(20, **SIZES["adaptive"], name="embedding")
    hidden = keras.layers.Dense(8, activation="tanh")(embedding(ids))
    softmax = AdaptiveSoftmax(embedding, name="softmax", **kwargs)
    return keras.Model(ids, softmax(hidden))


def _check_tie(model):
    embedding, softmax = model.get_layer("embedding"), model.get_layer("softmax")
    for table, same in zip(embedding.tables, softmax.tables, strict=True):
        assert table is same
    pairs = list(zip(embedding.projections, softmax.projections, strict=True))
    assert [one is two for one, two in pairs] == [False, True, True]
    # 3 tables and 3 projections; a dense layer; 1 projection, 3 biases, the cluster's.
    assert len(model.trainable_weights) == 6 + 2 + 6
    assert len({id(weight) for weight in model.weights}) == len(model.weights)


def test_tied_gradient_is_the_sum_of_both():
    model, ids, targets = _language_model(), _targets(), _targets()[::-1]
    embedding, softmax = model.get_layer("embedding"), model.get_layer("softmax")
    dense = model.layers[2]
    with tf.GradientTape(persistent=True) as tape:
        hidden = dense(embedding(ids))
        total = tf.reduce_sum(softmax.loss(hidden, targets))
        of_softmax = tf.reduce_sum(softmax.loss(tf.stop_gradient(hidden), targets))
    table = embedding.tables[1].value
    partial = tape.gradient(total, hidden)
    of_embedding = tape.gradient(hidden, table, partial)
    expected = tf.convert_to_tensor(of_embedding) + tape.gradient(of_softmax, table)
    np.testing.assert_allclose(tape.gradient(total, table), expected, rtol=1e-5)


@pytest.mark.usefixtures("full_float32")
def test_files_keep_the_tie(tmp_path):
    model, ids = _language_model(), _targets()
    _check_tie(model)
    random = np.random.default_rng(5)
    model.set_weights([random.normal(size=w.shape) for w in model.weights])
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(ids), model(ids), atol=1e-6)
    _check_tie(loaded)
    loaded.get_layer("embedding").tables[0].assign(np.ones((4, 7)))
    np.testing.assert_array_equal(
        loaded.get_layer("softmax").tables[0], np.ones((4, 7))
    )
    model.export(tmp_path / "exported", verbose=False)
    exported = tf.saved_model.load(tmp_path / "exported")
    np.testing.assert_allclose(exported.serve(tf.constant(ids)), model(ids), atol=1e-5)


@pytest.mark.filterwarnings("ignore:Skipping nested container")
def test_file_that_loses_a_tie_raises(tmp_path):
    """Keras identifies shared layers within one functional model only."""
    ids = keras.Input((None,), dtype="int32")
    embedding = AdaptiveEmbedding(20, **SIZES["adaptive"])
    inner = keras.Model(ids, embedding(ids))
    keras.Model(ids, AdaptiveSoftmax(embedding)(inner(ids))).save(tmp_path / "m.keras")
    with pytest.raises(ValueError, match="could not be loaded"):
        keras.saving.load_model(tmp_path / "m.keras")


def test_parts_can_be_untied():
    model = _language_model(tie_weights=False)
    embedding, softmax = model.get_layer("embedding"), model.get_layer("softmax")
    assert len(model.trainable_weights) == 6 + 2 + 6 + 5
    own = {id(weight) for weight in softmax.weights}
    assert not own & {id(weight) for weight in embedding.weights}
    layer = _softmax(tie_weights=False, tie_projections=(True, False, True))
    pairs = zip(layer.projections, layer.embedding.projections, strict=True)
    assert [one is two for one, two in pairs] == [True, False, True]
    assert layer.tables[0] is not layer.embedding.tables[0]
    layer = _softmax("one projected table", tie_projections=(False, True, True))
    (projection,) = layer.embedding.projections
    assert [p is projection for p in layer.projections] == [False, True, True]


@pytest.mark.parametrize(
    "arguments", [{"tie_projections": (True, True, True)}, {"tie_weights": False}]
)
def test_is_a_keras_layer(arguments, tmp_path):
    # Alone, without the embedding's calls, its first projection would be unused.
    def make_layer(**kwargs):
        embedding = AdaptiveEmbedding(20, **SIZES["adaptive"])
        return AdaptiveSoftmax(embedding, **arguments, **kwargs)

    hidden = _hidden(4, 5, "float32")
    harness.check_round_trip(make_layer())
    harness.check_symbolic_call(lambda: make_layer(dtype="mixed_bfloat16"), hidden)
    harness.check_save(make_layer, hidden, tmp_path)


@pytest.mark.parametrize("token", [-1, 20])
def test_targets_out_of_range(token, exact_regime):
    loss = exact_regime(_softmax().loss)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"range \[0, 20\)"):
        loss(_hidden(1, 2, "float32"), tf.constant([[0, token]]))
