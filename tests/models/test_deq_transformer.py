"""`DEQTransformer` tasks: probabilities, generation, padding, exports and presets."""

import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import layers, models, solvers
from tests.models.generation import check_greedy_generation, check_tokens_alone
from training.evaluation.budgets import split

TIGHT = solvers.Broyden(max_iter=80, tol=1e-6, history=80)
FAST = solvers.FixedPointIteration(max_iter=2, tol=None)


def _backbone(**kwargs):
    arguments = {
        "vocabulary_size": 60,
        "hidden_dim": 16,
        "num_heads": 2,
        "intermediate_dim": 32,
        "cutoffs": (20, 40),
        "div_val": 2,
        "solver": TIGHT,
    }
    return models.DEQTransformerBackbone(**{**arguments, **kwargs})


def _model(**kwargs):
    model = models.DEQTransformerCausalLM(_backbone(**kwargs))
    # The initial weights of the embedding are so small that all tokens look alike.
    for seed, weight in enumerate(model.backbone.token_embedding.weights):
        weight.assign(keras.random.normal(weight.shape, stddev=0.5, seed=seed))
    return model


def _tokens(shape=(2, 12), seed=0):
    return np.random.default_rng(seed).integers(0, 60, shape).astype("int32")


PROMPT_MASK = np.array([[1] * 4 + [0] * 8, [1] * 6 + [0] * 6])


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(0)
    return _model()


@pytest.fixture(scope="module")
def fast_model():
    keras.utils.set_random_seed(0)
    return _model(solver=FAST)


@pytest.fixture(scope="module")
def pre_norm_model():
    keras.utils.set_random_seed(0)
    return _model(normalize_first=True, local_size=5, weight_normalization=False)


@pytest.fixture(scope="module")
def started_model():
    keras.utils.set_random_seed(0)
    model = _model(num_explicit_layers=2, local_size=5, memory_length=12)
    for weight in model.trainable_weights:  # The layers begin with small weights.
        weight.assign_add(keras.random.normal(weight.shape, stddev=0.1))
    return model


def test_an_equilibrium_continues_explicit_layers(started_model):
    backbone, tokens = started_model.backbone, _tokens()
    h = backbone.segment_layer.explicit(backbone.token_embedding(tokens))
    z = backbone(tokens)
    layer = layers.TransformerXLLayer.from_config(backbone.deq.cell.get_config())
    layer.build(z.shape)
    layer.set_weights(backbone.deq.cell.get_weights())
    stack = layers.TransformerStack([layer], num_layers=1)
    np.testing.assert_allclose(stack(z + h), z, atol=1e-5)
    assert np.abs(z - h).max() > 0.1
    # Its solve starts at h, and its memory ends where the segment begins.
    with layers.SolveScope(backbone, max_iter=1):
        np.testing.assert_allclose(backbone(tokens), stack(h + h), atol=1e-5)
    with started_model.reading_segments():
        parts = [started_model(tokens[:, :7]), started_model(tokens[:, 7:])]
    whole = started_model(tokens)
    np.testing.assert_allclose(np.concatenate(parts, axis=1), whole, atol=1e-4)
    padded = started_model(_padded(tokens[:, :8], 12))
    alone = started_model(tokens[:1, :5])[0]
    np.testing.assert_allclose(padded[0, :5], alone, atol=1e-4)


def test_explicit_layers_of_a_larger_model(started_model, tmp_path):
    backbone, tokens = started_model.backbone, _tokens()
    model = keras.Model(backbone.input, keras.layers.Dense(3)(backbone.output))
    model.save(tmp_path / "model.keras")
    copy = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(copy(tokens), model(tokens))
    twin = models.explicit_twin(backbone, 1)
    twin.set_weights(backbone.get_weights())
    h = backbone.segment_layer.explicit(backbone.token_embedding(tokens))
    cell, state = backbone.deq.cell, keras.ops.convert_to_numpy(h)
    expected = cell(state, cell.inject(state))
    np.testing.assert_allclose(twin(tokens), expected, atol=1e-5)
    # Diagnostics solve the model's own problem.
    parts = split(models.NextTokenLossModel(started_model))
    solution = parts.layer.solve(parts.encode(tokens))
    np.testing.assert_array_equal(parts.head(solution.value), started_model(tokens))


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "float64"])
def test_a_cell_of_another_dtype(dtype):
    cell = layers.TransformerXLCell(8, 2, 16, dtype="float32")
    deq = layers.DEQ(cell, FAST, dtype=dtype)
    assert deq(np.ones((1, 3, 8))).dtype == deq.compute_dtype


def test_outputs_are_log_probabilities(fast_model):
    whole = fast_model(_tokens())
    assert whole.shape == (2, 12, 60)
    np.testing.assert_allclose(tf.reduce_sum(tf.exp(whole), -1), 1, atol=1e-5)
    x, y = models.NextTokenLossModel.examples(_tokens(), _tokens(seed=1))
    model = models.NextTokenLossModel(fast_model)
    losses = model(x)
    np.testing.assert_allclose(losses, -tf.gather(whole, y, batch_dims=2), atol=1e-4)

    # The perplexity ignores padding, which counts in Keras' mean.
    model.compile(run_eagerly=True)
    weights = np.float32(np.arange(12) < [[12], [6]])
    logs = model.evaluate(x, y, sample_weight=weights, verbose=0, return_dict=True)
    total = np.sum(losses * weights)
    np.testing.assert_allclose(logs["loss"], total / 24, rtol=1e-5)
    np.testing.assert_allclose(logs["perplexity"], np.exp(total / 18), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model", "pre_norm_model", "started_model"])
@pytest.mark.usefixtures("full_float32")
def test_a_token_alone_equals_a_full_solve(name, request):
    check_tokens_alone(request.getfixturevalue(name), _tokens(), 5, 7, 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model", "pre_norm_model", "started_model"])
def test_greedy_generation_equals_solving_the_prefix_again(name, request):
    model = request.getfixturevalue(name)
    model.compile(sampler="greedy")
    check_greedy_generation(model, _tokens(), PROMPT_MASK)


def test_empty_prompt_raises(fast_model):
    model = fast_model
    model.compile(sampler="greedy")
    inputs = {"token_ids": np.zeros((1, 4), int), "padding_mask": np.zeros((1, 4))}
    with pytest.raises(ValueError, match="prompt"):
        model.generate(inputs, stop_token_ids=None)


def _padded(tokens, width):
    """Texts of 5 and 8 tokens in a number of positions."""
    mask = np.arange(width) < np.array([[5], [8]])
    padded = np.zeros((2, width), "int32")
    padded[:, :8] = tokens
    return {"token_ids": padded * mask, "padding_mask": mask}


@pytest.mark.usefixtures("full_float32")
def test_padding_does_not_change_an_answer(fast_model):
    tokens = _tokens((2, 8))
    padded = fast_model(_padded(tokens, 40))
    for row, length in enumerate((5, 8)):
        alone = fast_model(tokens[row : row + 1, :length])[0]
        np.testing.assert_allclose(padded[row, :length], alone, atol=2e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("full_float32")
def test_an_export_is_pure(tmp_path):
    model = _model(memory_length=8)
    tokens = _tokens((2, 8))
    model.evaluate(tokens, tokens, verbose=0)
    model.export(tmp_path / "model", verbose=False)
    exported = tf.saved_model.load(tmp_path / "model")
    expected = model(tokens)
    for _ in range(2):
        np.testing.assert_allclose(exported.serve(tokens), expected, atol=1e-4)
    np.testing.assert_allclose(exported.serve(tokens[:1]), expected[:1], atol=1e-4)


def test_files_and_presets(fast_model, tmp_path):
    model, tokens = fast_model, _tokens()
    expected = model(tokens)
    model.compile(keras.optimizers.SGD(0.25), sampler="beam")
    model.save(tmp_path / "model.keras")
    model.save_to_preset(tmp_path / "preset")
    restored = (
        keras.saving.load_model(tmp_path / "model.keras"),
        models.DEQTransformerCausalLM.from_preset(str(tmp_path / "preset")),
    )
    for copy in restored:
        np.testing.assert_array_equal(copy(tokens), expected)
        assert copy.get_config()["tie_weights"]
        assert copy.softmax.tables[0] is copy.backbone.token_embedding.tables[0]
        assert len(copy.trainable_weights) == len(model.trainable_weights)
    assert isinstance(restored[0].sampler, keras_hub.samplers.BeamSampler)
    assert float(restored[0].optimizer.learning_rate) == 0.25


def test_token_ids_out_of_range_raise(fast_model):
    with pytest.raises(tf.errors.InvalidArgumentError, match="60"):
        fast_model(np.array([[3, 60]]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "preset, is_preln",
    [
        ("deq_transformer_medium_wikitext103", False),
        ("deq_transformer_medium_preln_wikitext103", True),
    ],
)
def test_presets(preset, is_preln):
    backbone = models.DEQTransformerBackbone.from_preset(preset, load_weights=False)
    assert backbone.deq.cell.normalize_first is is_preln
    assert backbone.count_params() == 96_932_050
    with pytest.raises(ValueError, match="load_deq_transformer"):
        models.DEQTransformerCausalLM.from_preset(preset)
