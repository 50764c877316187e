import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import models
from tests.models.generation import check_greedy_generation, check_tokens_alone

TIGHT = {"class_name": "fixed_point_iteration", "max_iter": 60, "tol": 1e-7}
PROMPT_MASK = np.array([[1] * 1 + [0] * 11, [1] * 6 + [0] * 6])


def _backbone(**kwargs):
    arguments = {
        "vocabulary_size": 60,
        "hidden_dim": 8,
        "intermediate_dim": 16,
        "kernel_size": 3,
        "dilation_rate": 2,
        "cutoffs": (20, 40),
        "solver": TIGHT,
    }
    return models.DEQTrellisNetBackbone(**{**arguments, **kwargs})


def _model(backbone=None, **kwargs):
    model = models.DEQTrellisNetCausalLM(backbone or _backbone(), **kwargs)
    # The initial weights are so small that all tokens look alike.
    for seed, weight in enumerate(model.backbone.trainable_weights):
        weight.assign(keras.random.normal(weight.shape, stddev=0.5, seed=seed))
    return model


def _tokens(shape=(2, 12), seed=0):
    return np.random.default_rng(seed).integers(0, 60, shape).astype("int32")


@pytest.fixture(scope="module")
def model():
    return _model()


def test_a_token_alone_equals_a_full_solve(model):
    whole = check_tokens_alone(model, _tokens(), 5, 7, 1e-4)
    np.testing.assert_allclose(tf.reduce_sum(tf.exp(whole), -1), 1, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, True])
def test_greedy_generation_equals_solving_the_prefix_again(model, jit_compile):
    model.compile(sampler="greedy", jit_compile=jit_compile)
    check_greedy_generation(model, _tokens(), PROMPT_MASK)


@pytest.mark.slow
def test_generates_text():
    tokenizer = keras_hub.tokenizers.ByteTokenizer(lowercase=False)
    preprocessor = models.DEQTrellisNetCausalLMPreprocessor(tokenizer, 32)
    model = _model(_backbone(vocabulary_size=256), preprocessor=preprocessor)
    model.compile(sampler="greedy")
    text = model.generate("to be", max_length=12)
    assert text.startswith("to be")


@pytest.mark.slow
def test_padding_does_not_change_an_answer(model):
    tokens, mask = _tokens((1, 12)), np.arange(12)[None] < 8
    outputs = model({"token_ids": tokens, "padding_mask": mask})
    np.testing.assert_allclose(outputs[:, :8], model(tokens[:, :8]), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "backbone, task",
    [
        ({}, {}),
        ({"cutoffs": (), "embedding_dim": 6}, {"num_experts": 3}),
        ({"embedding_dim": 6}, {"tie_weights": False}),
        ({"cutoffs": ()}, {"tie_weights": False, "num_experts": 2}),
    ],
    ids=["tied", "mixture", "untied", "untied-mixture"],
)
def test_files_presets_and_training(backbone, task, tmp_path):
    model = _model(_backbone(**backbone), **task)
    tokens = _tokens((4, 13))
    expected = model(tokens)
    model.save(tmp_path / "model.keras")
    model.save_to_preset(tmp_path / "preset")
    restored = (
        keras.saving.load_model(tmp_path / "model.keras"),
        models.DEQTrellisNetCausalLM.from_preset(str(tmp_path / "preset")),
    )
    for copy in restored:
        np.testing.assert_array_equal(copy(tokens), expected)
        assert copy.get_config()["tie_weights"] == task.get("tie_weights", True)
        assert len(copy.trainable_weights) == len(model.trainable_weights)
    trained = models.NextTokenLossModel(model)
    x, y = trained.examples(tokens[:, :-1], tokens[:, 1:])
    before = [weight.numpy() for weight in trained.trainable_weights]
    expected = -tf.gather(model(x["token_ids"]), y, batch_dims=2)
    np.testing.assert_allclose(trained(x), expected, atol=1e-4)
    trained.compile(keras.optimizers.Adam(1e-2))
    trained.fit(x, y, verbose=0)
    for weight, old in zip(trained.trainable_weights, before, strict=True):
        assert np.all(np.isfinite(weight)) and np.any(weight != old), weight.path


@pytest.mark.slow
def test_mixed_precision_trains():
    model = _model(
        _backbone(
            dtype="mixed_bfloat16",
            cutoffs=(),
            token_dropout=0.1,
            embedding_dropout=0.1,
            hidden_dropout=0.1,
            output_dropout=0.1,
            weight_dropout=0.1,
            memory_length=1,
        ),
        num_experts=2,
        expert_dropout=0.1,
    )
    model = models.NextTokenLossModel(model)
    model.compile(keras.optimizers.Adam(1e-2))
    tokens = _tokens((4, 13))
    x, y = model.examples(tokens[:, :-1], tokens[:, 1:])
    losses = model.fit(x, y, epochs=8, verbose=0, shuffle=False).history["loss"]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    "preset, total, of_the_cell",
    [
        ("deq_trellisnet_ptb", 24_192_400, 20_182_400),
        pytest.param(
            "deq_trellisnet_wikitext103",
            181_718_490,
            44_368_896,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_numbers_of_parameters(preset, total, of_the_cell):
    model = models.DEQTrellisNetCausalLM.from_preset(preset, load_weights=False)
    cell = model.backbone.deq.cell
    assert (model.count_params(), cell.count_params()) == (
        total,
        of_the_cell,
    )
    with pytest.raises(ValueError, match="without weights"):
        models.DEQTrellisNetBackbone.from_preset(preset)


def test_a_tie_of_different_widths_is_refused():
    with pytest.raises(ValueError, match="Use the same.*embedding_dim=6, hidden_dim=8"):
        models.DEQTrellisNetCausalLM(_backbone(embedding_dim=6))


@pytest.mark.parametrize(
    "backbone, task, message",
    [
        ({}, {"num_experts": 2}, "without cutoffs"),
        ({"cutoffs": ()}, {"num_experts": 0}, "`num_experts` must be a positive"),
        ({}, {"tie_weights": 1}, "`tie_weights` must be True or False"),
        ({}, {"expert_dropout": 0.5}, "`expert_dropout` applies to several"),
        (
            {"cutoffs": ()},
            {"num_experts": 2, "tie_projections": (True,)},
            "`tie_projections` applies to a single softmax",
        ),
    ],
)
def test_softmaxes_that_do_not_fit_are_refused(backbone, task, message):
    with pytest.raises(ValueError, match=message):
        models.DEQTrellisNetCausalLM(_backbone(**backbone), **task)
