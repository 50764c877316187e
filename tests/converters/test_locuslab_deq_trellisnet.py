"""A DEQ-TrellisNet with the reference's weights computes what the reference does."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras.converters.locuslab import load_deq_trellisnet
from deq_keras.models import NextTokenLossModel
from tests.golden import arrays
from tests.regimes import slow

VARIANTS = {"k2_d1": {}, "k3_d2_mos": {"dilation": 2}}
ONE_FAST = [slow("k2_d1"), "k3_d2_mos"]
EXACT = {"class_name": "fixed_point_iteration", "max_iter": 60, "tol": 1e-14}


def _state_dict(variant):
    return arrays.part("trellis", f"{variant}/param/")


def _model(variant, **kwargs):
    arguments = {
        "solver": EXACT,
        "gradient": {"class_name": "implicit", "solver": EXACT},
        "regularizer": None,
        "dtype": "float64",
        **VARIANTS[variant],
    }
    return load_deq_trellisnet(_state_dict(variant), **{**arguments, **kwargs})


def _segment(variant, segment):
    """Tokens, targets, logits and losses, `(batch, length, ...)`."""
    return [
        arrays.load("trellis")[f"{variant}/{segment}/{name}"].swapaxes(0, 1)
        for name in ("data", "target", "logits", "loss")
    ]


def _gradients(model):
    """The gradients that the model's weights have, by the reference's names."""
    cell, softmax = model.backbone.deq.cell, model.softmax
    layers = {
        "trellisnet.func.full_conv": cell.convolution,
        "trellisnet.inject_conv": cell.injection_convolution,
    }
    names = {"encoder.weight": model.backbone.token_embedding.tables[0]}
    for name, layer in layers.items():
        names[f"{name}.bias"] = layer.bias
        names[f"{name}.weight_g"] = layer.gain
        names[f"{name}.weight_v"] = layer.direction
    if model.num_experts == 1:
        return {**names, "decoder.bias": softmax.biases[0]}
    for name, layer in (("prior", softmax.prior), ("latent", softmax.latent)):
        names[f"mixsoft.{name}.weight"] = layer.kernel
        names[f"mixsoft.{name}.bias"] = layer.bias
    return {**names, "decoder.bias": softmax.bias}


@pytest.mark.parametrize("variant", ONE_FAST)
def test_segments_equal_the_reference(variant):
    model = _model(variant)
    solve = tf.function(model, autograph=False)
    with model.backbone.reading_segments():
        for segment in ("s0", "s1"):
            tokens, targets, logits, losses = _segment(variant, segment)
            outputs = solve(tokens)
            expected = logits
            if model.num_experts == 1:
                expected = tf.nn.log_softmax(logits)
            np.testing.assert_allclose(outputs, expected, atol=1e-10)
            picked = -tf.gather(outputs, targets, batch_dims=2)
            np.testing.assert_allclose(picked, losses, atol=1e-10)


@pytest.mark.parametrize("variant", ONE_FAST)
def test_gradients_equal_the_reference(variant):
    model = _model(variant)
    loss_model = NextTokenLossModel(model)
    tokens, targets, _, losses = _segment(variant, "s0")
    variables = _gradients(model)

    @tf.function(autograph=False)
    def gradients():
        inputs = {"token_ids": tokens, "targets": targets}
        with tf.GradientTape() as tape:
            found = loss_model(inputs, training=True)
            loss = tf.reduce_mean(found)
        return found, tape.gradient(loss, [v.value for v in variables.values()])

    found, gradients = gradients()
    np.testing.assert_allclose(found, losses, atol=1e-10)
    for name, gradient in zip(variables, gradients, strict=True):
        expected = arrays.load("trellis")[f"{variant}/s0/grad/{name}"]
        if name.endswith((".weight", ".weight_v")) and "coder" not in name:
            expected = expected.T
        gradient = tf.convert_to_tensor(gradient).numpy()
        error = np.abs(gradient - expected.reshape(gradient.shape))
        if name == "encoder.weight":
            # The reference embeds with padding_idx=-1, and so takes the last token for
            # padding, which gets no gradient.
            error = error[:-1]
        assert error.max() <= 1e-8 * np.abs(expected).max(), name


def test_split_softmax_equals_the_reference():
    # The numbers of the reference sheet, for three applications of the cell.
    state_dict = {
        "trellisnet.inject_conv.bias": arrays.fill((28,), 5, 0.3),
        "trellisnet.inject_conv.weight_g": 1 + arrays.fill((28, 1, 1), 6, 0.3),
        "trellisnet.inject_conv.weight_v": arrays.fill((28, 4, 2), 7, 0.3),
        "trellisnet.func.full_conv.bias": arrays.fill((28,), 8, 0.3),
        "trellisnet.func.full_conv.weight_g": 1 + arrays.fill((28, 1, 1), 9, 0.3),
        "trellisnet.func.full_conv.weight_v": arrays.fill((28, 7, 2), 10, 0.3),
        "encoder.weight": arrays.fill((12, 4), 13, 0.3),
        "decoder.weight": arrays.fill((12, 4), 13, 0.3),
        "decoder.bias": arrays.fill((12,), 15, 0.3),
        "tail_vectors": arrays.fill((2, 4), 50, 0.3),
        "tail_bias": arrays.fill((2,), 51, 0.3),
    }
    solver = {"class_name": "fixed_point_iteration", "max_iter": 3, "tol": None}
    model = load_deq_trellisnet(
        state_dict, splits=[5, 8], solver=solver, dtype="float64"
    )
    position, text = np.meshgrid(np.arange(5), np.arange(2))
    tokens = (3 * position + 5 * text) % 12
    losses = model.softmax(model.backbone(tokens), (tokens + 1) % 12)
    # The reference computed it in float32.
    np.testing.assert_allclose(tf.reduce_mean(losses), 2.5088360310, atol=1e-6)


def test_names_of_other_releases():
    state_dict = _state_dict("k2_d1")
    renamed = {f"module.{name}": array for name, array in state_dict.items()}
    weight = renamed.pop("module.trellisnet.func.full_conv.weight_v")
    renamed["module.trellisnet.func.full_conv.weight_v_raw"] = weight
    renamed["module.trellisnet.func_copy.full_conv.weight"] = np.zeros(3)
    renamed["module.decoder.weight"] = 2 * state_dict["encoder.weight"]
    model = load_deq_trellisnet(renamed)
    assert not model.softmax.tie_weights
    np.testing.assert_allclose(model.backbone.deq.cell.convolution.direction, weight.T)


@pytest.mark.parametrize(
    "name, shape",
    [
        ("decoder.bias", (3,)),
        ("left", (3,)),
        ("trellisnet.func.full_conv.weight_v", (44, 10, 2)),
    ],
)
def test_other_weights_raise(name, shape):
    with pytest.raises(ValueError, match=name):
        load_deq_trellisnet({**_state_dict("k2_d1"), name: np.zeros(shape)})
