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
TIES = {"tied": {}, "untied": {"tie_weights": False}}
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


def _log_softmax(logits):
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def _formula(layer, hidden):
    """Log-probabilities of one hidden state, written out token by token."""
    cutoffs = layer.embedding.cutoffs
    ends = [0, *cutoffs, layer.embedding.vocabulary_size]
    rows, biases, outputs = [], [], np.zeros(ends[-1])
    for table, bias in zip(layer.tables, layer.biases, strict=True):
        rows += list(table.numpy())
        biases += list(bias.numpy())
    features = [
        hidden if projection is None else hidden @ projection.numpy().T
        for projection in layer.projections
    ]
    logits = [
        [features[i] @ rows[t] + biases[t] for t in range(ends[i], ends[i + 1])]
        for i in range(len(features))
    ]
    if cutoffs:
        weight, bias = layer.cluster_weight.numpy(), layer.cluster_bias.numpy()
        logits[0] = [*logits[0], *(weight @ features[0] + bias)]
    head = _log_softmax(np.array(logits[0]))
    outputs[: ends[1]] = head[: ends[1]]
    for i in range(1, len(features)):
        outputs[ends[i] : ends[i + 1]] = head[-i] + _log_softmax(np.array(logits[i]))
    return outputs


@pytest.mark.parametrize("tie", TIES)
@pytest.mark.parametrize("name", SIZES)
def test_formula(name, tie):
    layer, hidden = _softmax(name, "float64", **TIES[tie]), _hidden(2, 3)
    expected = np.apply_along_axis(lambda h: _formula(layer, h), -1, hidden)
    np.testing.assert_allclose(layer(hidden), expected, atol=1e-12)


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


@pytest.mark.parametrize("name", SIZES)
def test_probabilities_sum_to_one(name):
    log_probabilities = _softmax(name, "float64")(10 * _hidden())
    sums = np.exp(log_probabilities.numpy()).sum(axis=-1)
    np.testing.assert_allclose(sums, 1, atol=1e-12)


def _loss_and_gradients(function, layer, hidden):
    with tf.GradientTape() as tape:
        tape.watch(hidden)
        losses = function(hidden)
        total = tf.reduce_sum(losses * tf.range(1.0, 21.0, dtype=losses.dtype))
    sources = [hidden, *(w.value for w in layer.trainable_weights)]
    gradients = tape.gradient(total, sources, unconnected_gradients="zero")
    return losses, [tf.convert_to_tensor(gradient) for gradient in gradients]


@pytest.mark.parametrize(
    "name, regime",
    [("adaptive", "graph"), ("adaptive", "xla"), *((name, "eager") for name in SIZES)],
    indirect=["regime"],
)
def test_loss_agrees_with_call(name, regime):
    layer, targets = _softmax(name, "float64"), _targets()
    hidden = tf.constant(_hidden())

    def of_call(hidden):
        return -tf.gather(layer(hidden), targets, batch_dims=2)

    def of_loss(hidden):
        return _loss_and_gradients(lambda h: layer.loss(h, targets), layer, hidden)

    losses, gradients = regime(of_loss)(hidden)
    expected_losses, expected = _loss_and_gradients(of_call, layer, hidden)
    np.testing.assert_allclose(losses, expected_losses, atol=1e-12)
    for one, two in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-11)


def test_all_targets_in_one_bucket(regime):
    layer, hidden = _softmax(), _hidden(2, 3, "float32")
    loss, log_probabilities = regime(layer.loss), layer(hidden)
    for token in (0, 3, 4, 9, 10, 19):
        losses = loss(hidden, tf.fill((2, 3), token))
        np.testing.assert_allclose(losses, -log_probabilities[..., token], atol=1e-5)


def test_loss_of_no_tokens():
    assert _softmax().loss(np.zeros((0, 5, 8)), np.zeros((0, 5), "int32")).shape == (
        0,
        5,
    )


def test_loss_never_forms_all_logits():
    """The largest tensor of a graph has the columns of one bucket only."""
    layer = _softmax()
    signature = tf.TensorSpec((None, None, 8)), tf.TensorSpec((None, None), "int32")
    graph = tf.function(layer.loss).get_concrete_function(*signature).graph
    shapes = [tensor.shape for op in graph.get_operations() for tensor in op.outputs]
    columns = {shape[-1] for shape in shapes if shape.rank and shape[0] is None}
    assert {6, 10} <= columns  # The head of 4 + 2, the last tail.
    assert 20 not in columns


@pytest.mark.parametrize("jit_compile", [False, True])
def test_regimes(jit_compile):
    layer = _softmax()
    signature = [tf.TensorSpec((None, None, 8))]
    compiled = tf.function(layer, input_signature=signature, jit_compile=jit_compile)
    for batch, length in ((2, 3), (1, 5)):
        hidden = _hidden(batch, length, "float32")
        np.testing.assert_allclose(compiled(hidden), layer(hidden), atol=1e-5)


def test_dynamic_batch_and_length_of_loss():
    layer = _softmax()
    signature = tf.TensorSpec((None, None, 8)), tf.TensorSpec((None, None), "int32")
    compiled = tf.function(layer.loss, input_signature=signature)
    for batch, length in ((2, 3), (1, 5)):
        arguments = _hidden(batch, length, "float32"), _targets(batch, length)
        np.testing.assert_allclose(
            compiled(*arguments), layer.loss(*arguments), rtol=1e-6
        )


def test_mixed_precision():
    exact, layer = _softmax(), _softmax(dtype="mixed_bfloat16")
    hidden, targets = _hidden(dtype="float32"), _targets()
    log_probabilities = layer(hidden)
    assert log_probabilities.dtype == layer.loss(hidden, targets).dtype == "float32"
    assert {weight.dtype for weight in layer.weights} == {"float32"}
    sums = np.exp(log_probabilities.numpy()).sum(axis=-1)
    np.testing.assert_allclose(sums, 1, atol=1e-5)
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


def test_tie():
    model = _language_model()
    _check_tie(model)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(model.trainable_weights)
    # One momentum a weight, the learning rate and the count of steps.
    assert len(optimizer.variables) == len(model.trainable_weights) + 2


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


def test_the_tie_survives_a_file(tmp_path):
    model, ids = _language_model(), _targets()
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
    model.save_weights(tmp_path / "model.weights.h5")
    fresh = _language_model()
    fresh.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_allclose(fresh(ids), model(ids), atol=1e-6)


@pytest.mark.filterwarnings("ignore:Skipping nested container")
def test_a_tie_that_a_file_loses_is_an_error(tmp_path):
    """Keras identifies shared layers within one functional model only."""
    ids = keras.Input((None,), dtype="int32")
    embedding = AdaptiveEmbedding(20, **SIZES["adaptive"])
    inner = keras.Model(ids, embedding(ids))
    keras.Model(ids, AdaptiveSoftmax(embedding)(inner(ids))).save(tmp_path / "m.keras")
    with pytest.raises(ValueError, match="could not be loaded"):
        keras.saving.load_model(tmp_path / "m.keras")


def test_untied_has_weights_of_its_own():
    model = _language_model(tie_weights=False)
    embedding, softmax = model.get_layer("embedding"), model.get_layer("softmax")
    assert len(model.trainable_weights) == 6 + 2 + 6 + 5
    own = {id(weight) for weight in softmax.weights}
    assert not own & {id(weight) for weight in embedding.weights}


def test_tie_of_projections_only():
    layer = _softmax(tie_weights=False, tie_projections=(True, False, True))
    pairs = zip(layer.projections, layer.embedding.projections, strict=True)
    assert [one is two for one, two in pairs] == [True, False, True]
    assert layer.tables[0] is not layer.embedding.tables[0]


def test_one_table_ties_all_buckets_to_its_projection():
    layer = _softmax("one projected table", tie_projections=(False, True, True))
    (projection,) = layer.embedding.projections
    assert [p is projection for p in layer.projections] == [False, True, True]


@keras.saving.register_keras_serializable(package="deq_keras_tests")
class LanguageModel(keras.Model):
    """A model whose constructor makes both layers, as a user would write one."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.embedding = AdaptiveEmbedding(20, **SIZES["adaptive"])
        self.softmax = AdaptiveSoftmax(self.embedding)

    def build(self, input_shape):
        self.embedding.build(input_shape)
        self.softmax.build((*input_shape, 8))

    def call(self, ids):
        return self.embedding(ids)

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        return tf.reduce_mean(self.softmax.loss(y_pred, y))


def test_training_with_the_loss(tmp_path):
    model, ids = LanguageModel(), _targets(8)
    model.compile(optimizer=keras.optimizers.Adam(0.03), jit_compile=False)
    history = model.fit(ids, ids[:, ::-1], epochs=8, batch_size=4, verbose=0).history
    # At first head and tails are uniform: 4 + 2 columns, then 6 tokens or 10.
    uniform = np.log(6) + 0.3 * np.log(6) + 0.5 * np.log(10)
    assert abs(history["loss"][0] - uniform) < 0.1
    assert history["loss"][-1] < history["loss"][0] - 0.05
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.softmax.tables[2] is loaded.embedding.tables[2]
    np.testing.assert_array_equal(
        loaded.softmax.loss(loaded(ids), ids), model.softmax.loss(model(ids), ids)
    )


def test_layer_contract(tmp_path):
    def make_layer(**kwargs):
        embedding = AdaptiveEmbedding(20, **SIZES["adaptive"])
        # Alone, without the embedding's calls, its first projection would be unused.
        return AdaptiveSoftmax(embedding, tie_projections=(True, True, True), **kwargs)

    hidden = _hidden(4, 5, "float32")
    harness.check_round_trip(make_layer())
    harness.check_symbolic_call(make_layer, hidden)
    harness.check_symbolic_call(lambda: make_layer(dtype="mixed_bfloat16"), hidden)
    harness.check_batches(make_layer, hidden)
    harness.check_fit(make_layer, hidden)
    harness.check_save(make_layer, hidden, tmp_path)


def test_layer_contract_when_untied(tmp_path):
    def make_layer():
        embedding = AdaptiveEmbedding(20, **SIZES["adaptive"])
        return AdaptiveSoftmax(embedding, tie_weights=False)

    harness.check_round_trip(make_layer())
    harness.check_save(make_layer, _hidden(4, 5, "float32"), tmp_path)


def test_export(tmp_path):
    model, ids = _language_model(), _targets()
    model.export(tmp_path / "exported", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "exported")
    np.testing.assert_allclose(loaded.serve(tf.constant(ids)), model(ids), atol=1e-5)


@pytest.mark.parametrize("token", [-1, 20])
def test_targets_out_of_range(token, exact_regime):
    loss = exact_regime(_softmax().loss)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"range \[0, 20\)"):
        loss(_hidden(1, 2, "float32"), tf.constant([[0, token]]))


def test_float_targets():
    with pytest.raises(ValueError, match="must be integers"):
        _softmax().loss(_hidden(1, 2), np.zeros((1, 2)))


def test_targets_of_another_shape():
    with pytest.raises(ValueError, match=r"one target for each.*\(2, 3, 8\).*\(3, 2\)"):
        _softmax().loss(_hidden(2, 3), np.zeros((3, 2), "int32"))


@pytest.mark.parametrize("embedding", [20, None, keras.layers.Embedding(20, 8)])
def test_bad_embedding(embedding):
    with pytest.raises(ValueError, match="`embedding`.*Received: embedding="):
        AdaptiveSoftmax(embedding)


@pytest.mark.parametrize(
    "ties, message",
    [
        (True, "`tie_projections`.*3 buckets.*Received"),
        ((), "`tie_projections`.*3 buckets.*Received"),
        ((True, False), "`tie_projections`.*3 buckets.*Received"),
        ((True, 1, False), r"`tie_projections\[1\]` must be True or False.*=1"),
    ],
)
def test_bad_tie_projections(ties, message):
    embedding = AdaptiveEmbedding(20, **SIZES["adaptive"])
    with pytest.raises(ValueError, match=message):
        AdaptiveSoftmax(embedding, tie_projections=ties)


def test_inputs_of_another_size():
    layer = AdaptiveSoftmax(AdaptiveEmbedding(20, 8))
    with pytest.raises(ValueError, match="output_dim=8.*Received"):
        layer(np.zeros((2, 3, 7)))
