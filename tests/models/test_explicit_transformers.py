"""Transformers with explicit layers: Transformer-XL, and layers of the DEQ's cell."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import models
from tests.models.generation import check_greedy_generation, check_tokens_alone
from tests.regimes import slow

ARCHITECTURE = {"hidden_dim": 8, "num_heads": 2, "intermediate_dim": 16}
EXPLICIT = (models.ExplicitTransformerBackbone, models.ExplicitTransformerCausalLM)
XL = (models.TransformerXLBackbone, models.TransformerXLCausalLM)


def _backbone(cls=models.TransformerXLBackbone, **arguments):
    keras.utils.set_random_seed(0)
    backbone = cls(11, **{"num_layers": 3, **ARCHITECTURE, **arguments})
    # The initial weights of the embedding are so small that all tokens look alike.
    for seed, weight in enumerate(backbone.token_embedding.weights):
        weight.assign(keras.random.normal(weight.shape, stddev=0.5, seed=seed))
    return backbone


def _tokens(batch=2, length=12, seed=0):
    return np.random.default_rng(seed).integers(0, 11, (batch, length))


def _normalized(norm, states):
    centered = states - states.mean(-1, keepdims=True)
    scaled = centered / np.sqrt(np.mean(centered**2, -1, keepdims=True) + 1e-5)
    return scaled * norm.gamma.numpy() + norm.beta.numpy()


def _unchanged(norm, states):
    del norm
    return states


@pytest.mark.parametrize("normalize_first", [False, True])
def test_layers_are_the_published_ones(normalize_first):
    """Post-LN or pre-LN around attention and branch, the input below the first."""
    backbone = _backbone(normalize_first=normalize_first, dtype="float64")
    tokens = _tokens()
    state = backbone.token_embedding(tokens).numpy()
    for layer in backbone.segment_layer.cells:
        before, after = (
            (_normalized, _unchanged) if normalize_first else (_unchanged, _normalized)
        )
        seen = tf.constant(before(layer.attention_norm, state))
        prepared = layer.attention.prepare(tf.zeros((2, 12, 24), tf.float64))
        attended = layer.attention(seen, prepared).numpy()
        hidden = after(layer.attention_norm, state + attended)
        seen = before(layer.branch_norm, hidden)
        branch = layer.contraction(tf.nn.relu(layer.expansion(seen))).numpy()
        state = after(layer.branch_norm, hidden + branch)
    np.testing.assert_allclose(backbone(tokens), state, atol=1e-10)


def test_tied_layers_are_the_unrolled_equilibrium():
    tied = _backbone(models.ExplicitTransformerBackbone, weight_tied=True)
    unrolled = models.DEQTransformerBackbone(
        11,
        **ARCHITECTURE,
        solver={
            "class_name": "FixedPointIteration",
            "config": {"max_iter": 3, "tol": None},
        },
        gradient="unrolled",
        regularizer=None,
    )
    unrolled.set_weights(tied.get_weights())
    np.testing.assert_allclose(tied(_tokens()), unrolled(_tokens()), atol=1e-6)


@pytest.mark.parametrize("cls, normalize_first", [(XL[0], False), (EXPLICIT[0], True)])
def test_two_segments_are_one_text(cls, normalize_first):
    """With a memory as long as the text, each layer sees what it sees in one piece."""
    arguments = {"normalize_first": normalize_first, "dtype": "float64"}
    whole = _backbone(cls, **arguments)
    segmented = _backbone(cls, memory_length=6, **arguments)
    segmented.set_weights(whole.get_weights())
    tokens = _tokens()
    with segmented.reading_segments():
        received = [segmented(tokens[:, :6]), segmented(tokens[:, 6:])]
    np.testing.assert_allclose(np.concatenate(received, 1), whole(tokens), atol=1e-10)
    np.testing.assert_allclose(segmented(tokens[:, :6]), received[0])


@pytest.mark.parametrize("weight_tied", [True, slow(False)])
def test_recomputation_changes_no_gradient(weight_tied):
    inputs = {"token_ids": _tokens(), "targets": _tokens(seed=1)}
    results = []
    for recompute in (False, True):
        backbone = _backbone(EXPLICIT[0], weight_tied=weight_tied, recompute=recompute)
        model = models.NextTokenLossModel(EXPLICIT[1](backbone))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(inputs))
        results.append(tape.gradient(loss, model.trainable_variables))
    for kept, recomputed in zip(*results, strict=True):
        np.testing.assert_allclose(kept, recomputed, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "classes, arguments",
    [(XL, {"normalize_first": True}), slow(EXPLICIT, {"weight_tied": True})],
)
def test_token_alone_equals_the_whole(classes, arguments):
    model = classes[1](_backbone(classes[0], **arguments))
    constants = model.generation_constants(12)
    check_tokens_alone(model, _tokens(), 5, 8, 1e-5, constants)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [XL, EXPLICIT])
def test_greedy_generation_equals_reading_the_prefix_again(classes):
    model = classes[1](_backbone(classes[0]))
    model.compile(sampler="greedy")
    mask = np.array([[1] * 4 + [0] * 8, [1] * 6 + [0] * 6])
    check_greedy_generation(model, _tokens(), mask)
