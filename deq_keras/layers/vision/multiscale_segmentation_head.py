"""The segmentation head of multiscale equilibrium models."""

import keras
from keras import ops

from deq_keras.core.checks import check_count, check_rate
from deq_keras.core.serialization import arguments_of
from deq_keras.core.structure import wide_dtype
from deq_keras.layers.kernel_initializer import SMALL_NORMAL
from deq_keras.layers.vision.convolution_unit import ConvolutionUnit
from deq_keras.layers.vision.symmetric_conv import check_side


def resize_aligned(feature_map, height, width):
    """Resizes feature maps bilinearly with aligned corners.

    The first and last rows and columns equal the input's, as with PyTorch's
    `align_corners=True`; TensorFlow and Keras only resize with half-pixel centers.

    Args:
        feature_map: Tensor of shape `(batch, old_height, old_width, channels)`.
        height: Integer or scalar tensor. New height.
        width: Integer or scalar tensor. New width.

    Returns:
        Tensor of shape `(batch, height, width, channels)`.
    """
    _, old_height, old_width, _ = ops.shape(feature_map)
    dtype = feature_map.dtype
    rows = _weights(height, old_height, dtype)
    columns = _weights(width, old_width, dtype)
    feature_map = ops.einsum("hi,biwc->bhwc", rows, feature_map)
    return ops.einsum("wj,bhjc->bhwc", columns, feature_map)


def _weights(size, old_size, dtype):
    """Returns the matrix `(size, old_size)` of the weights of old positions."""
    # Integers avoid rounding: |i (old - 1) - j (new - 1)|.
    new_steps = ops.maximum(size - 1, 1)
    centers = ops.expand_dims(ops.arange(size) * (old_size - 1), 1)
    distance = ops.abs(centers - ops.arange(old_size) * new_steps)
    weights = ops.maximum(new_steps - distance, 0)
    exact = wide_dtype(dtype)
    return ops.cast(ops.cast(weights, exact) / ops.cast(new_steps, exact), dtype)


@keras.saving.register_keras_serializable(package="deq_keras")
class MultiscaleSegmentationHead(keras.layers.Layer):
    """Computes logits of every pixel from the maps of a multiscale equilibrium.

    All maps are resized to the finest, bilinearly with aligned corners, and
    concatenated. A 1x1 `ConvolutionUnit` and a convolution follow (the head of HRNet).
    The logits are resized to the images.

    Args:
        num_classes: Positive integer. Number of classes.
        scale: Positive integer. Ratio of the size of the images to the finest map.
            Defaults to `4`.
        kernel_size: Positive odd integer. Kernel size of the last convolution. Defaults
            to `1`.
        activation: Activation of the outputs. Defaults to `None`, for logits.
        momentum: Float in `[0, 1)`. See `ConvolutionUnit`. Defaults to `0.99`, as in
            the reference, the authors' PyTorch code (locuslab/mdeq), where it is called
            `0.01`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        maps: List of tensors, one per scale.
        training: Boolean. Whether to use batch statistics.

    Input shape:
        `(batch, height / 2**i, width / 2**i, channels_i)` for each i.

    Output shape:
        `(batch, scale * height, scale * width, num_classes)`, at least float32.

    Example:

    >>> head = MultiscaleSegmentationHead(19, scale=4)
    >>> maps = [keras.ops.ones((2, 8, 8, 24)), keras.ops.ones((2, 4, 4, 24))]
    >>> tuple(head(maps).shape)
    (2, 32, 32, 19)

    Reference:
        [Wang et al., 2019](https://arxiv.org/abs/1908.07919).
    """

    def __init__(
        self,
        num_classes,
        scale=4,
        kernel_size=1,
        activation=None,
        momentum=0.99,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_classes = check_count("num_classes", num_classes)
        self.scale = check_count("scale", scale)
        self.kernel_size = check_side("kernel_size", kernel_size)
        self.activation = keras.activations.get(activation)
        self.momentum = check_rate("momentum", momentum)

    def build(self, maps_shape):
        channels = sum(shape[-1] for shape in maps_shape)
        self.unit = ConvolutionUnit(
            channels,
            1,
            use_bias=True,
            momentum=self.momentum,
            name="unit",
            dtype=self.dtype_policy,
        )
        self.classifier = keras.layers.Conv2D(
            self.num_classes,
            self.kernel_size,
            padding="same",
            kernel_initializer=SMALL_NORMAL,
            bias_initializer=SMALL_NORMAL,
            name="classifier",
            dtype=self.dtype_policy,
        )
        shape = (*maps_shape[0][:-1], channels)
        self.unit.build(shape)
        self.classifier.build(shape)

    def call(self, maps, training=None):
        _, height, width, _ = ops.shape(maps[0])
        features = [maps[0]]
        features += [resize_aligned(other, height, width) for other in maps[1:]]
        features = self.unit(ops.concatenate(features, axis=-1), training=training)
        logits = ops.cast(self.classifier(features), wide_dtype(self.compute_dtype))
        logits = resize_aligned(logits, self.scale * height, self.scale * width)
        return self.activation(logits)

    def compute_output_shape(self, maps_shape):
        batch, *sizes, _ = maps_shape[0]
        return (
            batch,
            *(size and self.scale * size for size in sizes),
            self.num_classes,
        )

    def get_config(self):
        return {
            **super().get_config(),
            **arguments_of(self, MultiscaleSegmentationHead),
        }
