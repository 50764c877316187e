"""A language model with the reference's weights computes what the reference does."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import gradients, solvers
from deq_keras.converters import locuslab
from tests.golden import arrays

ARCHITECTURES = {
    "a1_pre1_wn1": {"pre_lnorm": True, "cutoffs": [60, 120]},
    "a4_pre0_wn1": {},
    "plain": {},
}
TIGHT = solvers.Broyden(max_iter=60, tol=1e-10, history=60)


def _arrays(variant):
    return arrays.part("language_model", f"{variant}/")


def _state_dict(variant):
    return arrays.part("language_model", f"{variant}/param/")


def _load(variant, **arguments):
    arguments = {**ARCHITECTURES[variant], "mem_len": 8, **arguments}
    return locuslab.load_deq_transformer(
        _state_dict(variant),
        gradient=gradients.ImplicitGradient(TIGHT),
        regularizer=None,
        **arguments,
    )


def _losses(model, golden, segment):
    tokens, targets = golden[f"{segment}/data"].T, golden[f"{segment}/target"].T
    return -tf.gather(model(tokens), targets, batch_dims=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "variant, dtype, tolerance",
    [
        ("a1_pre1_wn1", "float64", 1e-8),
        ("a4_pre0_wn1", "float32", 1e-4),
        ("plain", "float64", 1e-8),
    ],
)
def test_losses_of_two_segments_and_the_memory(variant, dtype, tolerance):
    golden = _arrays(variant)
    solver = TIGHT if dtype == "float64" else solvers.Broyden(60, 1e-6)
    model = _load(variant, solver=solver, dtype=dtype)
    solve = tf.function(model, autograph=False)
    with model.reading_segments():
        for segment in ("s0", "s1"):
            losses = _losses(solve, golden, segment)
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


@pytest.mark.slow
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
    golden = {
        name: array.astype("float64")
        for name, array in arrays.part("language_model", f"{variant}/s0/grad/").items()
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


def _of_2019(state_dict):
    """The names and shapes of the release of 2019, with its copies of the layer."""
    old = {}
    for name, array in state_dict.items():
        if "_projs." in name:
            name = name.removesuffix(".weight")
        if name.startswith("func.pos_ff.") and "weight" in name:
            array = array[..., None]  # (out, in, width of the convolution)
        old[name] = array
        if name.startswith("func."):
            old[f"deq.{name}"] = old[f"deqback.{name}"] = array
            old[f"deqback.func_copy.{name.removeprefix('func.')}"] = array
            old[f"func_copy.{name.removeprefix('func.')}"] = array
    return old


def test_release_of_2019():
    variant = "a4_pre0_wn1"
    new = _state_dict(variant)
    old = _of_2019(new)
    assert "word_emb.emb_projs.1" in old and "crit.out_projs.2" in old
    solver = solvers.FixedPointIteration(max_iter=2, tol=None)
    models = [
        locuslab.load_deq_transformer(arrays, solver=solver, **ARCHITECTURES[variant])
        for arrays in (new, old)
    ]
    tokens = _arrays(variant)["s0/data"].T
    expected, received = (model(tokens).numpy() for model in models)
    np.testing.assert_array_equal(received, expected)
    ties = [model.softmax.tie_projections for model in models]
    assert ties[0] == ties[1]


def test_names_of_wrappers_are_dropped():
    state_dict = _state_dict("plain")
    expected = locuslab.load_deq_transformer(state_dict).get_weights()
    prefix = "_orig_mod.model.module."
    wrapped = {prefix + name: array for name, array in state_dict.items()}
    received = locuslab.load_deq_transformer(wrapped).get_weights()
    np.testing.assert_equal(received, expected)


def test_weights_of_other_precisions():
    """Each weight in another one, and a model of the numbers that are left."""
    dtypes = ["float16", "float64", ">f4", "longdouble", "bfloat16", "float8_e4m3fn"]
    state_dict = _state_dict("plain")
    assert len(state_dict) > len(dtypes)
    others, rounded = {}, {}
    for index, (name, array) in enumerate(state_dict.items()):
        others[name] = array.astype(dtypes[index % len(dtypes)])
        rounded[name] = others[name].astype("float32")
    models = [locuslab.load_deq_transformer(each) for each in (others, rounded)]
    np.testing.assert_equal(*(model.get_weights() for model in models))


INJECTION = "inject_conv.weight"


@pytest.mark.parametrize(
    "change",
    [
        lambda array: np.where(np.arange(array.size) == 5, np.nan, array.ravel()),
        lambda array: array.astype("float64") * 1e300,
        lambda array: array.astype("int8"),
        lambda array: array.astype("object"),
        lambda array: array.view("V4"),
        lambda array: array[:0],
        lambda array: np.float32(1),
        lambda array: np.repeat(array, 2, -1),
        lambda array: [[1.0], [1.0, 2.0]],
    ],
)
def test_other_arrays_raise(change):
    state_dict = _state_dict("plain")
    state_dict[INJECTION] = change(state_dict[INJECTION])
    with pytest.raises(ValueError, match=INJECTION):
        locuslab.load_deq_transformer(state_dict)


def test_names_that_do_not_fit_are_listed():
    state_dict = _state_dict("plain")
    del state_dict["func.dec_attn.r_net.weight"]
    state_dict["crit.out_layers.0.bias"] = np.zeros(7)
    state_dict["func.extra"] = np.zeros(3)
    with pytest.raises(ValueError) as error:
        locuslab.load_deq_transformer(state_dict)
    for name in ("func.dec_attn.r_net.weight", "func.extra", "crit.out_layers.0.bias"):
        assert name in str(error.value)


@pytest.mark.parametrize(
    "state_dict, arguments, message",
    [
        ([1, 2], {}, "state_dict"),
        ({3: np.zeros(3)}, {}, "strings"),
        ({"conv1.weight": np.zeros((3, 3))}, {}, "conv1.weight"),
        (dict.fromkeys(["a", "module.a"], np.ones(1)), {}, "`a` twice.*'module.a'"),
        (_state_dict("plain"), {"pre_norm": True}, "pre_norm.*pre_lnorm.*pre_norm=Tr"),
    ],
)
def test_other_state_dicts_and_arguments_raise(state_dict, arguments, message):
    with pytest.raises(ValueError, match=message):
        locuslab.load_deq_transformer(state_dict, **arguments)
