"""A language model with the reference's weights computes what the reference does."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import gradients, regularizers, solvers
from deq_keras.converters import locuslab
from tests.golden import arrays

ARCHITECTURES = {
    "a1_pre1_wn1": {"pre_lnorm": True, "cutoffs": [60, 120]},
    "a4_pre0_wn1": {},
    "plain": {},
}
TIGHT = solvers.Broyden(max_iter=90, tol=1e-12, history=90)


def _arrays(variant):
    prefix = f"{variant}/"
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.load("language_model").items()
        if name.startswith(prefix)
    }


def _state_dict(variant):
    return {
        name.removeprefix("param/"): array
        for name, array in _arrays(variant).items()
        if name.startswith("param/")
    }


def _load(variant, **arguments):
    arguments = {**ARCHITECTURES[variant], "mem_len": 8, **arguments}
    return locuslab.load_deq_transformer(
        _state_dict(variant),
        gradient=gradients.ImplicitGradient(TIGHT),
        jacobian_regularizer=None,
        **arguments,
    )


def _losses(model, golden, segment):
    tokens, targets = golden[f"{segment}/data"].T, golden[f"{segment}/target"].T
    return -tf.gather(model(tokens), targets, batch_dims=2)


@pytest.mark.parametrize("variant", ARCHITECTURES)
@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-8), ("float32", 1e-4)])
def test_losses_of_two_segments_and_the_memory(variant, dtype, tolerance):
    golden = _arrays(variant)
    solver = TIGHT if dtype == "float64" else solvers.Broyden(60, 1e-6)
    model = _load(variant, solver=solver, dtype=dtype)
    with model.reading_segments():
        for segment in ("s0", "s1"):
            losses = _losses(model, golden, segment)
            expected = golden[f"{segment}/loss_ordered"].T
            np.testing.assert_allclose(losses, expected, rtol=0, atol=tolerance)
    memory = model.backbone.segment_layer.memory
    for name, key in (("states", "s1/new_mem_z"), ("injections", "s1/new_mem_u")):
        expected = golden[key].transpose(1, 0, 2)
        np.testing.assert_allclose(memory[name], expected, rtol=0, atol=tolerance)
    expected = golden["s0/loss_ordered"].T
    np.testing.assert_allclose(
        _losses(model, golden, "s0"), expected, rtol=0, atol=tolerance
    )


@pytest.mark.parametrize("variant", ["a1_pre1_wn1", "a4_pre0_wn1"])
def test_gradients(variant):
    golden = _arrays(variant)
    model = _load(variant, solver=TIGHT, dtype="float64")
    tokens, targets = golden["s0/data"].T, golden["s0/target"].T
    with tf.GradientTape() as tape:
        hidden = model.backbone(tokens, training=True)
        loss = tf.reduce_mean(model.softmax.loss(hidden, targets))
    found = tape.gradient(loss, [v.value for v in model.trainable_variables])
    expected = _gradients_as_model(variant).trainable_variables
    assert len(found) == len(expected) > 20
    for gradient, variable in zip(found, expected, strict=True):
        gradient, array = tf.convert_to_tensor(gradient), variable.numpy()
        tolerance = 1e-6 * np.abs(array).max() + 1e-12
        np.testing.assert_allclose(gradient, array, rtol=0, atol=tolerance)


def _gradients_as_model(variant):
    """A model whose weights are the reference's gradients."""
    prefix = "s0/grad/"
    golden = {
        name.removeprefix(prefix): array.astype("float64")
        for name, array in _arrays(variant).items()
        if name.startswith(prefix)
    }
    # The reference keeps tied projections as two parameters with a gradient each.
    for index in (1, 2):
        names = [
            f"{n}.{index}.weight" for n in ("word_emb.emb_projs", "crit.out_projs")
        ]
        if names[0] in golden:
            golden[names[0]] = golden[names[1]] = golden[names[0]] + golden[names[1]]
    architecture = ARCHITECTURES[variant]
    return locuslab.load_deq_transformer(golden, dtype="float64", **architecture)


def test_what_the_weights_say_need_not_be_given():
    given = _load(
        "a4_pre0_wn1",
        n_token=200,
        n_head=4,
        d_model=32,
        d_head=8,
        d_embed=32,
        d_inner=64,
        div_val=4,
        cutoffs=[60, 120],
        wnorm=True,
        tie_weights=True,
        n_layer=3,
        tgt_len=16,
    )
    assert given.get_config()["backbone"]["config"]["cutoffs"] == [60, 120]
    assert given.softmax.tie_projections == (False, True, True)
    assert given.backbone.local_size == 1000


def test_untied_weights_stay_untied():
    state_dict = _state_dict("a4_pre0_wn1")
    for index in range(3):
        state_dict[f"crit.out_layers.{index}.weight"] = 2 * np.asarray(
            state_dict[f"crit.out_layers.{index}.weight"]
        )
    model = locuslab.load_deq_transformer(state_dict)
    assert not model.softmax.tie_weights
    table = state_dict["word_emb.emb_layers.1.weight"]
    np.testing.assert_array_equal(model.softmax.tables[1], 2 * table)
    np.testing.assert_array_equal(model.backbone.token_embedding.tables[1], table)


def test_everything_that_does_not_fit_is_named_in_one_error():
    state_dict = _state_dict("plain")
    del state_dict["func.dec_attn.r_net.weight"]
    state_dict["crit.out_layers.0.bias"] = np.zeros(7)
    state_dict["func.extra"] = np.zeros(3)
    with pytest.raises(ValueError) as error:
        locuslab.load_deq_transformer(state_dict)
    message = str(error.value)
    assert "missing: func.dec_attn.r_net.weight" in message
    assert "left over: func.extra" in message
    assert (
        "wrong shape: crit.out_layers.0.bias, which is (7,) and not (200,)" in message
    )


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"pre_norm": True}, "Unknown argument `pre_norm`. Did you mean `pre_lnorm`"),
        ({"n_head": 8}, "The weights say n_head=4. Received: n_head=8"),
        ({"cutoffs": [50]}, "softmax has 0 clusters.*cutoffs=\\[50\\]"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        locuslab.load_deq_transformer(_state_dict("plain"), **arguments)


def test_another_checkpoint_is_refused():
    with pytest.raises(ValueError, match="sizes of a DEQ-Transformer are read from"):
        locuslab.load_deq_transformer({"conv1.weight": np.zeros((3, 3))})


def test_regularizer_and_dtype_are_passed_on():
    model = locuslab.load_deq_transformer(
        _state_dict("plain"),
        jacobian_regularizer=regularizers.JacobianRegularizer(2.0),
        dtype="mixed_bfloat16",
    )
    assert model.backbone.deq.jacobian_regularizer.weight == 2.0
    assert model(np.zeros((1, 3), "int32")).dtype == "float32"
