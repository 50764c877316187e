"""`DEQTrellisNet` tasks: generation, files, losses and sizes of the publication."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import models
from tests.models.generation import check_greedy_generation, check_tokens_alone
from tests.regimes import slow

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


def test_token_alone_equals_a_full_solve(model):
    whole = check_tokens_alone(model, _tokens(), 5, 7, 1e-4)
    np.testing.assert_allclose(tf.reduce_sum(tf.exp(whole), -1), 1, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, True])
def test_greedy_generation_equals_solving_the_prefix_again(model, jit_compile):
    model.compile(sampler="greedy", jit_compile=jit_compile)
    check_greedy_generation(model, _tokens(), PROMPT_MASK)


@pytest.mark.slow
@pytest.mark.parametrize(
    "backbone, task",
    [
        ({"cutoffs": (), "embedding_dim": 6}, {"num_experts": 3}),
        ({"embedding_dim": 6}, {"tie_weights": False}),
    ],
    ids=["mixture", "untied"],
)
def test_files_presets_and_losses(backbone, task, tmp_path):
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
    losses = models.NextTokenLossModel(model)
    x, y = losses.examples(tokens[:, :-1], tokens[:, 1:])
    expected = -tf.gather(model(x["token_ids"]), y, batch_dims=2)
    np.testing.assert_allclose(losses(x), expected, atol=1e-4)


@pytest.mark.parametrize(
    "preset, total, of_the_cell",
    [
        ("deq_trellisnet_ptb", 24_192_400, 20_182_400),
        slow("deq_trellisnet_wikitext103", 181_718_490, 44_368_896),
    ],
)
def test_numbers_of_parameters(preset, total, of_the_cell):
    model = models.DEQTrellisNetCausalLM.from_preset(preset, load_weights=False)
    cell = model.backbone.deq.cell
    assert (model.count_params(), cell.count_params()) == (total, of_the_cell)
    with pytest.raises(ValueError, match="without weights"):
        models.DEQTrellisNetBackbone.from_preset(preset)
