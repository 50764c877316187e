"""An MDEQ with the reference's weights computes what the reference does."""

import functools
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import gradients, layers, models, solvers
from deq_keras.converters import locuslab
from deq_keras.converters.locuslab import mdeq
from deq_keras.core.linearization import linearize
from tests.golden import arrays
from tests.regimes import slow

SIZES = [(8, 16), (16, 8), (24, 4)]  # Channels, height and width of each scale.
TIGHT = solvers.Broyden(max_iter=60, tol=1e-8, history=60)
# The weights of f were rounded to float32 after the reference ran, see the README of
# the golden arrays: what depends on them agrees to 3e-7.
ROUNDING = 5e-7


def _golden():
    return arrays.load("mdeq")


def _state_dict():
    return arrays.part("mdeq", "param/")


def _load(state_dict, **arguments):
    arguments = {"num_groups": 4, "downsample_times": 1, **arguments}
    return locuslab.load_mdeq(state_dict, **arguments)


def _in_our_layout(reference_arrays):
    """Arrays of the reference in the order of the golden names, as our variables."""
    names, state_dict = list(_golden()["names"]), _state_dict()
    ends = np.cumsum([state_dict[name].size for name in names])
    for name, end in zip(names, ends, strict=True):
        shape = state_dict[name].shape
        places = np.arange(end - np.prod(shape), end, dtype="float64")
        state_dict[name] = places.reshape(shape)
    variables = _load(state_dict, dtype="float64").trainable_variables
    places = [variable.numpy().astype(int) for variable in variables]
    found = np.concatenate([place.ravel() for place in places])
    np.testing.assert_array_equal(np.sort(found), np.arange(ends[-1]))
    flat = np.concatenate([np.ravel(array) for array in reference_arrays])
    return [flat[place] for place in places]


def _maps(vectors):
    """The scales of a state `(batch, features, 1)` of the reference."""
    parts = np.split(np.asarray(vectors, "float64"), np.cumsum([2048, 1024]), axis=1)
    return [
        tf.constant(part.reshape(-1, channels, size, size).transpose(0, 2, 3, 1))
        for part, (channels, size) in zip(parts, SIZES, strict=True)
    ]


def _images(dtype="float64"):
    return tf.constant(_golden()["x"].transpose(0, 2, 3, 1), dtype)


def _assert_close(actual, expected, tolerance):
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)


@functools.cache
def _loaded():
    """A model, and the weights that it must have at the start of a test."""
    model = _load(_state_dict(), regularizer=None, solver=TIGHT, dtype="float64")
    return model, model.get_weights()


def _model():
    """The model of the checkpoint, also after a test that trained it."""
    model, weights = _loaded()
    model.set_weights(weights)
    deq = model.backbone.deq
    deq.solver = TIGHT
    deq.gradient = gradients.ImplicitGradient(TIGHT)
    return model


class Step(NamedTuple):
    """What a training step of a model computes."""

    maps: Any
    logits: Any
    loss: Any
    gradients: list
    weights: list  # all weights of the model, with the moving statistics after the step


@functools.cache
def _implicit_step():
    model, golden = _model(), _golden()
    with tf.GradientTape() as tape:
        maps = model.backbone(_images(model.compute_dtype), training=True)
        logits = model.head(maps, training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
            golden["labels"], logits
        )
        loss = tf.reduce_mean(losses)
    values = [variable.value for variable in model.trainable_variables]
    return Step(maps, logits, loss, tape.gradient(loss, values), model.get_weights())


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_stem(mode):
    injection = _model().backbone.stem(_images(), training=mode == "train")
    expected = _golden()[f"{mode}/inj0"].transpose(0, 2, 3, 1)
    np.testing.assert_allclose(injection, expected, rtol=1e-7)


def test_one_evaluation_and_the_product_with_its_jacobian():
    backbone, golden = _model().backbone, _golden()
    cell = backbone.deq.cell
    injection = cell.inject(backbone.stem(_images(), training=True), training=True)
    zeros = cell.initial_state(injection)
    first = cell(zeros, injection)
    _assert_close(first, _maps(golden["train/f_zero"]), ROUNDING)
    state = _maps(golden["zr"])
    linearization = linearize(lambda state: cell(state, injection), state)
    _assert_close(linearization.value, _maps(golden["train/fzr"]), ROUNDING)
    product = linearization.vjp(_maps(golden["ct"]))
    _assert_close(product, _maps(golden["train/vjp"]), ROUNDING)


@pytest.mark.slow
def test_training():
    step, golden = _implicit_step(), _golden()
    _assert_close(step.maps, _maps(golden["train/z_star"]), ROUNDING)
    np.testing.assert_allclose(step.logits, golden["train/logits"], atol=ROUNDING)
    np.testing.assert_allclose(step.loss, golden["train/loss"], rtol=ROUNDING)


def test_evaluation():
    """The reference's equilibrium is one of ours: a solve stays where it starts."""
    model, golden = _model(), _golden()
    expected = _maps(golden["eval/z_star"])
    start = {model.backbone.deq.name: expected}
    with layers.SolveScope(model.backbone, max_iter=3, initial_states=start):
        maps = model.backbone(_images())
    _assert_close(maps, expected, ROUNDING)
    np.testing.assert_allclose(model.head(maps), golden["eval/logits"], atol=1e-7)


def test_implicit_gradients():
    golden = _golden()
    expected = _in_our_layout([golden[f"grad/{name}"] for name in golden["names"]])
    # The bias before a batch normalization has the gradient zero, up to rounding.
    floor = 1e-3 * max(np.abs(array).max() for array in expected)
    found = _implicit_step().gradients
    for gradient, array in zip(found, expected, strict=True):
        bound = 1e-6 * (np.abs(array).max() + floor)
        np.testing.assert_allclose(gradient, array, rtol=0, atol=bound)


def test_moving_statistics():
    """Keras takes the variance of the batch as it is; PyTorch multiplies it with
    n / (n - 1), n being the number of positions of the batch."""
    model, golden, state_dict = _model(), _golden(), _state_dict()
    model.set_weights(_implicit_step().weights)
    units = {
        "downsample.1": (model.backbone.stem.units[0], 16),
        "downsample.4": (model.backbone.stem.units[1], 16),
        "stage0.1": (model.backbone.stem.units[2], 16),
        "incre_modules.0.0.bn1": (model.head.blocks[0].units[0], 16),
        "incre_modules.1.0.bn3": (model.head.blocks[1].units[2], 8),
        "incre_modules.2.0.downsample.1": (model.head.blocks[2].shortcut, 4),
        "downsamp_modules.1.1": (model.head.downsamplings[1], 4),
        "final_layer.1": (model.head.final_unit, 4),
    }
    for name, (unit, size) in units.items():
        normalization, n = unit.normalization, 2 * size * size
        mean, variance = (
            golden[f"train/after/{name}.running_{what}"] for what in ("mean", "var")
        )
        np.testing.assert_allclose(normalization.moving_mean, mean, atol=1e-7)
        kept = 0.9 * state_dict[f"{name}.running_var"].astype("float64")
        added = normalization.moving_variance.numpy() - kept
        np.testing.assert_allclose(kept + added * n / (n - 1), variance, atol=1e-7)
        assert np.abs(added / (n - 1)).max() > 1e-5


# The golden model's finest scale alone: a model that is built fast.


def _small_state_dict():
    dropped = (
        *("fullstage.branches.1.", "fullstage.branches.2.", "fullstage.fuse_layers."),
        *("fullstage.post_fuse_layers.1.", "fullstage.post_fuse_layers.2."),
        *("incre_modules.1.", "incre_modules.2.", "downsamp_modules."),
    )
    small = {k: v for k, v in _state_dict().items() if not k.startswith(dropped)}
    small["final_layer.0.weight"] = small["final_layer.0.weight"][:, :16]
    return small


def _segmentation_state_dict(kernel_size=1):
    heads = ("incre_modules.", "final_layer.", "classifier.")
    small = {k: v for k, v in _small_state_dict().items() if not k.startswith(heads)}
    shapes = {
        "0.weight": (8, 8, 1, 1),
        **{f"{n}": (8,) for n in ("0.bias", "1.weight", "1.bias", "1.running_mean")},
        "1.running_var": (8,),
        "3.weight": (5, 8, kernel_size, kernel_size),
        "3.bias": (5,),
    }
    last = {
        f"last_layer.{name}": arrays.fill(shape, k, 0.5) + 1
        for k, (name, shape) in enumerate(shapes.items())
    }
    return {**small, **last}


def _load_small(state_dict, **arguments):
    solver = solvers.FixedPointIteration(max_iter=2, tol=None)
    arguments = {"solver": solver, "gradient": "unrolled", **arguments}
    return _load(state_dict, regularizer=None, **arguments)


@functools.cache
def _small_model():
    return _load_small(_small_state_dict())


def test_wrappers_and_copies_are_ignored():
    plain = _small_state_dict()
    wrapped = {f"module.{name}": array for name, array in plain.items()}
    wrapped["module.downsample.1.num_batches_tracked"] = np.array(7)
    kernel = plain["fullstage.branches.0.blocks.0.conv1.weight"]
    wrapped["module.fullstage_copy.branches.0.blocks.0.conv1.weight"] = kernel
    wrapped["module.deq.func.branches.0.blocks.0.conv1.weight"] = kernel
    given = {"NUM_CHANNELS": [8], "NUM_BLOCKS": (1,), "BIG_KERNELS": [1]}
    given |= {"EXPANSION_FACTOR": 3, "WNORM": False, "NUM_CLASSES": 10}
    given |= {"NUM_LAYERS": 4, "BLOCK": "BASIC", "DROPOUT": 0.5}
    model, expected = _load_small(wrapped, **given), _small_model()
    np.testing.assert_equal(model.get_weights(), expected.get_weights())
    assert model.backbone.dropout == 0.5
    assert expected.backbone.kernel_size == [[5, 3]]


@pytest.mark.parametrize("normalized", [slow("branches."), ""], ids=["blocks", "all"])
def test_names_and_norms_of_torchdeq(normalized):
    """Its ImageNet model normalizes the weights of the blocks, the other one all."""
    state_dict = {}
    for name, array in _small_state_dict().items():
        cell = name.removeprefix("fullstage.")
        is_kernel = cell != name and array.ndim == 4
        name = name.replace("fullstage.", "full_stage.")
        if is_kernel and cell.startswith(normalized):
            rows = array.astype("float64").reshape(len(array), -1)
            norm = np.linalg.norm(rows, axis=1)
            state_dict[f"{name}_g"] = norm.reshape(-1, 1, 1, 1)
            state_dict[f"{name}_v"] = 3.0 * array.astype("float64")
        else:
            state_dict[name] = array
    backbone, plain = _load_small(state_dict).backbone, _small_model().backbone
    assert backbone.weight_normalization and not plain.weight_normalization
    np.testing.assert_allclose(
        *(one(_images("float32"))[0] for one in (backbone, plain)), atol=1e-5
    )


def test_further_downsamplings_have_names():
    state_dict = _small_state_dict()
    state_dict["downsample.DS3.weight"] = state_dict["downsample.3.weight"]
    for name in ("weight", "bias", "running_mean", "running_var"):
        state_dict[f"downsample.DS3-BN.{name}"] = state_dict[f"downsample.4.{name}"]
    model = _load_small(state_dict, downsample_times=3)
    assert model.backbone.num_downsamplings == 3
    kernels = [unit.convolution.kernel.numpy() for unit in model.backbone.stem.units]
    np.testing.assert_array_equal(kernels[1], kernels[2])


@pytest.mark.parametrize("make", [_small_state_dict, slow(_segmentation_state_dict)])
def test_new_head_for_other_classes(make):
    state_dict = make()
    model = _load_small(state_dict, num_classes=3, drop_head=True)
    expected = _small_model() if make is _small_state_dict else _load_small(state_dict)
    assert model.num_classes == 3
    *weights, kernel, bias = model.get_weights()
    np.testing.assert_equal(weights, expected.get_weights()[:-2])
    assert kernel.shape[-1] == len(bias) == 3


def test_segmentation():
    state_dict = _segmentation_state_dict(kernel_size=3)
    model = _load_small(state_dict)
    assert isinstance(model, models.MDEQImageSegmenter)
    assert model.backbone.batch_norm_momentum == 0.99
    head, normalization = model.head, model.head.unit.normalization
    found = {
        "0.weight": head.unit.convolution.kernel.numpy().transpose(3, 2, 0, 1),
        "0.bias": head.unit.convolution.bias,
        "1.weight": normalization.gamma,
        "1.bias": normalization.beta,
        "1.running_mean": normalization.moving_mean,
        "1.running_var": normalization.moving_variance,
        "3.weight": head.classifier.kernel.numpy().transpose(3, 2, 0, 1),
        "3.bias": head.classifier.bias,
    }
    for name, value in found.items():
        expected = state_dict[f"last_layer.{name}"].astype("float32")
        np.testing.assert_array_equal(value, expected)
    assert model(_images("float32")).shape == (2, 32, 32, 5)


@pytest.mark.parametrize(
    "name, change",
    [
        ("downsample.1.running_var", lambda array: -array),
        ("classifier.weight", lambda array: array[0, 0]),
        ("downsample.0.weight", lambda array: np.zeros((8, 4, 3, 3))),
        ("fullstage.branches.0.blocks.0.conv2.weight", lambda array: array[0]),
        *((prefix, None) for prefix in ("stage0.1.bias", "classifier.", "fullstage.")),
    ],
)
def test_other_or_missing_weights_raise(name, change):
    state_dict = _small_state_dict()
    if change is None:
        state_dict = {k: v for k, v in state_dict.items() if not k.startswith(name)}
    else:
        state_dict[name] = change(state_dict[name])
    with pytest.raises(ValueError, match="The checkpoint" if change is None else name):
        _load_small(state_dict)


def test_missing_and_double_arguments_raise():
    with pytest.raises(ValueError, match="`downsample_times`.*Received"):
        _load_small(_small_state_dict(), downsample_times=None)
    with pytest.raises(
        ValueError, match="`dropout`.*Received: dropout=0.2, DROPOUT=0.1"
    ):
        _load_small(_small_state_dict(), dropout=0.2, DROPOUT=0.1)


def test_expansions_give_the_number_of_channels():
    for filters in range(1, 200):
        for hidden in range(filters, 8 * filters, 7):
            assert int(mdeq._expansion(hidden, filters) * filters) == hidden
