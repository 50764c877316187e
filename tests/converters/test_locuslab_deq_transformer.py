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
OTHERS = ("a4_pre0_wn1", "plain")
TIGHT = solvers.Broyden(max_iter=60, tol=1e-10, history=60)


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
        regularizer=None,
        **arguments,
    )


def _losses(model, golden, segment):
    tokens, targets = golden[f"{segment}/data"].T, golden[f"{segment}/target"].T
    return -tf.gather(model(tokens), targets, batch_dims=2)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["a1_pre1_wn1", *OTHERS])
@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-8), ("float32", 1e-4)])
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
    assert "wrong shape: crit.out_layers.0.bias of shape (7,)" in message


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"pre_norm": True}, "Unknown argument `pre_norm`. Did you mean 'pre_lnorm'"),
        ({"n_head": 8}, "The weights say n_head=4. Received: n_head=8"),
        ({"cutoffs": [50]}, "softmax has 0 clusters.*cutoffs=\\[50\\]"),
        ({"drop_head": True}, "Unknown argument `drop_head`"),
        ({"MEM_LEN": 8}, "Did you mean 'mem_len'"),
        ({"solvr": "anderson"}, "Did you mean 'solver'"),
        ({"pre_lnorm": "maybe"}, "`normalize_first` must be True or False.*'maybe'"),
        ({"mem_len": 1e30}, "`memory_length` must be an integer.*1e"),
        ({"local_size": -1}, "`local_size` must be a positive integer.*-1"),
        ({"dropout": 1}, r"a number in \[0, 1\). Received: dropout=1"),
        ({"dropatt": float("nan")}, r"a number in \[0, 1\).*dropout=nan"),
        ({"d_inner": "64"}, "The weights say d_inner=.*Received: d_inner=64"),
        ({"cutoffs": 60}, "`cutoffs` must be a tuple.*cutoffs=60"),
        ({"dtype": "int32"}, "`dtype` must be a floating-point.*'int32'"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        locuslab.load_deq_transformer(_state_dict("plain"), **arguments)


def test_what_is_none_is_not_given():
    given = _load("plain", pre_lnorm=None, mem_len=None, cutoffs=None, n_head=None)
    assert given.backbone.memory_length == 0


def _of_2019(state_dict):
    """The names and shapes of the release of 2019, with its copies of the layer."""
    old = {}
    for name, array in state_dict.items():
        if "_projs." in name:
            name = name.removesuffix(".weight")
        if name.startswith("func.pos_ff.") and "weight" in name:
            array = array[..., None]  # Of a convolution.
        old[name] = array
        if name.startswith("func."):
            old[f"deq.{name}"] = old[f"deqback.{name}"] = array
            old[f"deqback.func_copy.{name.removeprefix('func.')}"] = array
            old[f"func_copy.{name.removeprefix('func.')}"] = array
    return old


@pytest.mark.parametrize("variant", ["a1_pre1_wn1", "a4_pre0_wn1"])
def test_release_of_2019(variant):
    new = _state_dict(variant)
    old = _of_2019(new)
    if variant == "a4_pre0_wn1":
        assert "word_emb.emb_projs.1" in old and "crit.out_projs.2" in old
        assert not any(name.endswith("_projs.1.weight") for name in old)
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
    for prefix in ("module.", "model.module.", "_orig_mod."):
        wrapped = {prefix + name: array for name, array in state_dict.items()}
        received = locuslab.load_deq_transformer(wrapped).get_weights()
        for one, other in zip(received, expected, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=prefix)


INJECTION = "inject_conv.weight"


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
    for one, other in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_array_equal(one, other)


def _with(change):
    state_dict = _state_dict("plain")
    return {**state_dict, INJECTION: change(state_dict[INJECTION])}


def _spoiled(value):
    def change(array):
        array = array.astype("float64")
        array.flat[5] = value
        return array

    return change


@pytest.mark.parametrize(
    "change, message",
    [
        (_spoiled(np.nan), f"not finite: {INJECTION}, in 1 of 3072 numbers"),
        (_spoiled(-np.inf), f"not finite: {INJECTION}, in 1 of 3072 numbers"),
        (_spoiled(1e300), f"not finite: {INJECTION}, in 1 of 3072 numbers"),
        (lambda array: array.astype("int8"), f"`{INJECTION}` is of the dtype int8"),
        (lambda array: array.astype("bool"), f"`{INJECTION}` is of the dtype bool"),
        (lambda array: array + 0j, f"`{INJECTION}` is of the dtype complex"),
        (lambda array: array.astype("str"), f"`{INJECTION}` is of the dtype <U"),
        (lambda array: array.astype("object"), f"`{INJECTION}` is of the dtype object"),
        (lambda array: array.view([("a", "f4")]), f"`{INJECTION}` is of the dtype .*a"),
        (lambda array: array.view("V4"), "bytes of which NumPy does not know"),
        (lambda array: array[:0], f"`{INJECTION}` is empty: its shape is .0, 32, 1"),
        (lambda array: array.ravel(), f"{INJECTION} must have rank 2 or 3"),
        (lambda array: np.float32(1), f"{INJECTION} must have rank 2 or 3"),
        (lambda array: np.repeat(array, 2, -1), f"wrong shape: {INJECTION}.*32, 2"),
        (lambda array: [[1.0], [1.0, 2.0]], f"`{INJECTION}` is no array but list"),
    ],
)
def test_what_is_no_weight_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        locuslab.load_deq_transformer(_with(change))


@pytest.mark.parametrize(
    "name",
    [
        "word_emb.emb_layers.0.weight",
        "word_emb.emb_layers.1.weight",
        "crit.cluster_bias",
        "func.dec_attn.r_w_bias",
        "func.dec_attn.qkv_net.weight_g",
        "crit.out_projs.1.weight",
    ],
)
def test_a_number_in_the_place_of_an_array_is_refused(name):
    state_dict = {**_state_dict("a4_pre0_wn1"), name: np.float32(1)}
    with pytest.raises(ValueError, match=name):
        locuslab.load_deq_transformer(state_dict)


@pytest.mark.parametrize(
    "state_dict, message",
    [
        ([1, 2], "Expected a mapping of names to arrays.*list"),
        ({3: np.zeros(3)}, "Names of weights must be strings. Received: 3"),
        ({"a": np.ones(1), "module.a": np.ones(1)}, "has `a` twice"),
    ],
)
def test_what_is_no_state_dict(state_dict, message):
    with pytest.raises(ValueError, match=message):
        locuslab.load_deq_transformer(state_dict)


def test_another_checkpoint_is_refused():
    with pytest.raises(ValueError, match="sizes of a DEQ-Transformer are read from"):
        locuslab.load_deq_transformer({"conv1.weight": np.zeros((3, 3))})


def test_regularizer_and_dtype_are_passed_on():
    model = locuslab.load_deq_transformer(
        _state_dict("plain"),
        regularizer=regularizers.JacobianRegularizer(2.0),
        dtype="mixed_bfloat16",
    )
    assert model.backbone.deq.regularizer.weight == 2.0
    assert model(np.zeros((1, 3), "int32")).dtype == "float32"
