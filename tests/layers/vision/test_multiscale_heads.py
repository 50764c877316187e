"""Heads of an MDEQ compute logits of images of any size in float32."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras.layers import MultiscaleClassificationHead, MultiscaleSegmentationHead
from tests import harness
from tests.regimes import slow


def _maps(dtype="float64", shapes=((2, 8, 4, 6), (2, 4, 2, 12), (2, 2, 1, 8))):
    return [
        np.random.default_rng(seed).normal(size=shape).astype(dtype)
        for seed, shape in enumerate(shapes)
    ]


def _randomize(head):
    for index, weight in enumerate(head.weights):
        random = np.random.default_rng(10 + index).normal(size=weight.shape)
        weight.assign(np.abs(random) if "variance" in weight.path else random)


def _classifier(dtype="float64", **kwargs):
    return MultiscaleClassificationHead(5, (2, 3, 4), 10, dtype=dtype, **kwargs)


def _segmenter(dtype="float64", **kwargs):
    return MultiscaleSegmentationHead(5, **{"scale": 2, **kwargs}, dtype=dtype)


def _resize(inputs, height, width):
    """Bilinear interpolation between the positions of aligned corners, one by one."""
    outputs = np.zeros((len(inputs), height, width, inputs.shape[-1]))
    for i in range(height):
        for j in range(width):
            weights = []
            for k, size, old in (
                (i, height, inputs.shape[1]),
                (j, width, inputs.shape[2]),
            ):
                position = k * (old - 1) / max(size - 1, 1)
                low = min(int(np.floor(position + 1e-12)), old - 1)
                weights.append((low, min(low + 1, old - 1), position - low))
            (top, bottom, y), (left, right, x) = weights
            upper = (1 - x) * inputs[:, top, left] + x * inputs[:, top, right]
            lower = (1 - x) * inputs[:, bottom, left] + x * inputs[:, bottom, right]
            outputs[:, i, j] = (1 - y) * upper + y * lower
    return outputs


def _eval_unit(unit, inputs):
    """A unit with a window of one position, by its moving statistics."""
    outputs = inputs @ unit.convolution.kernel.numpy()[0, 0]
    outputs = outputs + unit.convolution.bias.numpy()
    statistics = unit.normalization
    outputs = outputs - statistics.moving_mean.numpy()
    outputs = outputs / np.sqrt(statistics.moving_variance.numpy() + 1e-5)
    outputs = outputs * statistics.gamma.numpy() + statistics.beta.numpy()
    return np.maximum(outputs, 0)


@pytest.mark.parametrize(
    "scale, shapes",
    [
        (4, ((2, 8, 4, 6), (2, 4, 2, 12), (2, 2, 1, 8))),
        (2, ((2, 1, 1, 4), (2, 1, 1, 3))),
        (1, ((2, 7, 3, 4), (2, 9, 5, 3))),  # A map larger than the first.
        (2, ((2, 4, 1, 4),)),
    ],
)
def test_segmentation_head(scale, shapes):
    head, maps = _segmenter(scale=scale), _maps(shapes=shapes)
    head(maps)
    _randomize(head)
    _, height, width, _ = maps[0].shape
    resized = [_resize(feature_map, height, width) for feature_map in maps]
    features = _eval_unit(head.unit, np.concatenate(resized, axis=-1))
    logits = features @ head.classifier.kernel.numpy()[0, 0]
    logits = logits + head.classifier.bias.numpy()
    expected = _resize(logits, scale * height, scale * width)
    outputs = head(maps)
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-10)
    assert head.compute_output_shape([m.shape for m in maps]) == outputs.shape


@pytest.mark.parametrize("make", [_classifier, _segmenter])
def test_logits_are_in_float32_at_least(make):
    outputs = {}
    for dtype in ("mixed_bfloat16", "float32", "float64"):
        head = make(dtype)
        maps = [keras.ops.cast(m, head.compute_dtype) for m in _maps()]
        logits = head(maps, training=True)
        assert logits.dtype == ("float64" if dtype == "float64" else "float32")
        if outputs:
            head.set_weights(outputs["weights"])
        outputs.setdefault("weights", head.get_weights())
        outputs[dtype] = head(maps)
    for dtype in ("mixed_bfloat16", "float32"):
        np.testing.assert_allclose(outputs[dtype], outputs["float64"], atol=0.05)


@pytest.mark.parametrize("make", [slow(_classifier), _segmenter])
def test_is_a_keras_layer(make):
    maps, head = _maps("float32"), make("float32", activation="softmax")
    np.testing.assert_allclose(tf.reduce_sum(head(maps), -1), 1, atol=1e-5)
    harness.check_round_trip(head)
    harness.check_symbolic_call(lambda: head, maps)
    harness.check_regimes(lambda: head, maps)
    weights = head.trainable_weights
    loss = lambda: head(maps, training=True)[..., 0] ** 2  # noqa: E731
    gradients = harness.gradients(loss, weights)
    for weight, gradient in zip(weights, gradients, strict=True):
        assert gradient is not None, weight.path
        assert np.all(np.isfinite(gradient)), weight.path


def test_segmentation_of_maps_of_unknown_size():
    head = _segmenter("float32", kernel_size=3)
    channels = (6, 12, 8)
    inputs = [keras.Input((None, None, count)) for count in channels]
    model = keras.Model(inputs, head(inputs))
    assert model.output_shape == (None, None, None, 5)
    maps = _maps("float32")
    np.testing.assert_allclose(model(maps), head(maps), atol=1e-6)
    assert model.predict(maps, verbose=0).shape == (2, 16, 8, 5)
