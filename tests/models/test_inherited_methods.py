"""Methods inherited from KerasHub do what they do there, or raise."""

import keras
import numpy as np
import pytest

from deq_keras import layers, models, solvers
from deq_keras.models.kerashub import FOLDER
from tests.regimes import slow

_SOLVER = solvers.FixedPointIteration(max_iter=2)
_TRANSFORMER = {
    "vocabulary_size": 20,
    "hidden_dim": 8,
    "num_heads": 2,
    "intermediate_dim": 8,
}
TOKENS = np.random.default_rng(0).integers(0, 20, (4, 5)).astype("int32")


def _deq_transformer(**kwargs):
    return models.DEQTransformerBackbone(**_TRANSFORMER, solver=_SOLVER, **kwargs)


def _transformer_xl(**kwargs):
    return models.TransformerXLBackbone(**_TRANSFORMER, num_layers=2, **kwargs)


def _deq_trellisnet(weight_normalization=False):
    return models.DEQTrellisNetBackbone(
        20, 8, 8, solver=_SOLVER, weight_normalization=weight_normalization
    )


def _trellisnet(weight_normalization=False):
    return models.TrellisNetBackbone(
        20, 8, 8, num_layers=2, weight_normalization=weight_normalization
    )


def _boards(cell):
    encoder = layers.BoardEmbedding(20, 8, (4, 5))
    return models.ReasonerBackbone(
        cell, (4, 5), encoder, problem_dtype="int32", solver=_SOLVER
    )


def _attention():
    return _boards(layers.AttentionCell(8, 2))


def _trained(backbone, inputs):
    mean = keras.layers.GlobalAveragePooling1D()(backbone.output)
    model = keras.Model(backbone.input, keras.layers.Dense(3)(mean))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-2), loss, run_eagerly=True)
    model.fit(inputs, np.array([0, 1, 2, 0]), epochs=2, verbose=0)


@pytest.mark.parametrize(
    "make, names",
    [
        (_deq_transformer, ["injection_projection"]),
        slow(_transformer_xl, ["query_key_value"]),
        slow(_deq_trellisnet, ["convolution", "injection_convolution"]),
        slow(_trellisnet, ["convolution", "injection_convolution"]),
    ],
)
def test_lora_trains_only_low_rank_updates(make, names, tmp_path):
    backbone = make()
    assert backbone.default_lora_layer_names() == names
    backbone.enable_lora(2)
    adapted = [layer for layer in backbone._flatten_layers() if layer.name in names]
    assert len(backbone.trainable_variables) == 2 * len(adapted) > 0
    before = {weight.path: weight.numpy() for weight in backbone.weights}
    frozen = [weight for weight in backbone.weights if not weight.trainable]
    _trained(backbone, TOKENS)
    for weight in backbone.trainable_variables:
        assert np.any(weight.numpy() != before[weight.path]), weight.path
    for weight in frozen:
        np.testing.assert_array_equal(weight, before[weight.path])
    # A file of LoRA weights restores the outputs on the same frozen weights.
    expected = backbone(TOKENS)
    backbone.save_lora_weights(tmp_path / "tuned.lora.h5")
    fresh = make()
    plain = [weight for weight in backbone.weights if "lora" not in weight.name]
    for weight, old in zip(fresh.weights, plain, strict=True):
        weight.assign(before[old.path])
    fresh.load_lora_weights(tmp_path / "tuned.lora.h5")
    np.testing.assert_allclose(fresh(TOKENS), expected, atol=1e-6)
    # Keras merges the updates into the kernels of a file.
    backbone.save(tmp_path / "model.keras")
    merged = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(merged(TOKENS), expected, atol=1e-5)


def test_lora_finds_attention_in_a_reasoner():
    backbone = _attention()
    backbone.enable_lora(2)
    assert {weight.path.split("/")[-2] for weight in backbone.trainable_variables} == {
        "query",
        "value",
    }


@pytest.mark.parametrize(
    "make, names",
    [
        (lambda: _deq_trellisnet(weight_normalization=True), None),
        (lambda: _transformer_xl(weight_normalization=True), None),
        (_transformer_xl, ["query"]),
        (lambda: _boards(layers.MixerCell(8)), None),
    ],
    ids=["trellisnet", "normalized", "unknown", "no_attention"],
)
def test_lora_without_a_layer_to_adapt_raises(make, names):
    backbone = make()
    num_trainable = len(backbone.trainable_variables)
    with pytest.raises(ValueError, match="target_layer_names.*Received"):
        backbone.enable_lora(2, names)
    assert len(backbone.trainable_variables) == num_trainable


def test_lora_checks_the_rank():
    with pytest.raises(ValueError, match="`rank`.*Received"):
        _transformer_xl().enable_lora(0)


def test_presets_accept_other_arguments():
    task = models.ReasonerTagger.from_preset("mazes", dtype="mixed_bfloat16")
    assert task.backbone.deq.cell.compute_dtype == "bfloat16"
    backbone = models.MDEQBackbone.from_preset(
        "mdeq_tiny_cifar10", load_weights=False, filters=(8,), image_shape=(8, 8, 3)
    )
    assert backbone.filters == (8,) and backbone.image_shape == (8, 8, 3)
    assert not backbone.post_affine
    with pytest.raises(ValueError, match="DEQTransformerBackbone"):
        models.MDEQBackbone.from_preset("characters")


@pytest.mark.parametrize("is_compiled", [True, False])
def test_files_load_without_their_compilation(is_compiled, tmp_path):
    model = models.TransformerXLCausalLM(_transformer_xl(), compile=is_compiled)
    if is_compiled:
        model.run_eagerly = True
        model.fit(TOKENS, TOKENS, verbose=0, shuffle=False)
    model.save(tmp_path / "model.keras")
    copy = keras.saving.load_model(tmp_path / "model.keras", compile=False)
    np.testing.assert_array_equal(copy(TOKENS), model(TOKENS))
    assert copy.compiled  # By default, as KerasHub's tasks.
    assert not copy.optimizer.built


@pytest.mark.parametrize(
    "cls, preset",
    [
        (models.DEQTransformerCausalLMPreprocessor, "characters"),
        (models.MDEQImageClassifierPreprocessor, "digits"),
    ],
)
def test_preprocessors_load_presets_by_name(cls, preset):
    by_name, by_path = (cls.from_preset(name) for name in (preset, FOLDER / preset))
    assert isinstance(by_name, cls)
    assert by_name.get_config() == by_path.get_config()


def test_unknown_arguments_raise():
    for make in (lambda **kwargs: models.MDEQBackbone((8,), **kwargs), _transformer_xl):
        with pytest.raises(TypeError, match="token_dropout"):
            make(token_dropout=0.1)


def test_a_trellisnet_does_not_generate():
    model = models.TrellisNetCausalLM(_trellisnet())
    inputs = {"token_ids": TOKENS, "padding_mask": np.ones_like(TOKENS)}
    for call in (
        lambda: model.generate(inputs, stop_token_ids=None),
        lambda: model.generate_step(inputs),
        lambda: model.build_cache(TOKENS, 2),
        lambda: model.call_with_cache(TOKENS[:, :1], None, 1),
    ):
        with pytest.raises(NotImplementedError, match="DEQTrellisNetCausalLM"):
            call()


@pytest.mark.slow
def test_tasks_load_after_training_with_lora(tmp_path):
    task = models.ReasonerTagger.from_preset("mazes")
    task.backbone.enable_lora(2, ["recall"])
    task.compile(run_eagerly=True)
    boards = np.zeros((2, 5, 5, 3), "float32")
    answers = np.zeros((2, 5, 5), "int32")
    task.fit(boards, answers, verbose=0, shuffle=False)
    task.save(tmp_path / "task.keras")
    with pytest.warns(UserWarning, match="Skipping variable loading for optimizer"):
        copy = keras.saving.load_model(tmp_path / "task.keras")
    np.testing.assert_allclose(copy(boards), task(boards), atol=1e-4)
