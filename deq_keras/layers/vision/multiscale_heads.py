"""The heads of multiscale equilibrium models."""

from typing import Any

import keras
from keras import ops

from deq_keras.core.checks import check_count, check_counts, check_rate
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.core.structure import wide_dtype
from deq_keras.layers.composite_layer import CompositeLayer
from deq_keras.layers.kernel_initializer import SMALL_NORMAL
from deq_keras.layers.vision.convolution_units import BottleneckBlock, ConvolutionUnit
from deq_keras.layers.vision.symmetric_conv import check_side


@keras.saving.register_keras_serializable(package="deq_keras")
class MultiscaleClassificationHead(CompositeLayer):
    """Computes logits from the feature maps of a multiscale equilibrium.

    A `BottleneckBlock` transforms every map. Starting at the finest scale, a 3x3
    `ConvolutionUnit` halves the resolution of the running sum, and the next map is
    added. A 1x1 unit, global average pooling and a dense layer follow (the head of
    HRNet).

    Args:
        num_classes: Positive integer. Number of classes.
        filters: Tuple of positive integers. `filters` of the block of each scale.
        final_filters: Positive integer. Number of channels that are pooled.
        activation: Activation of the outputs. Defaults to `None`, for logits.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        maps: List of tensors, one per scale.
        training: Boolean. Whether to use batch statistics.

    Input shape:
        `(batch, height / 2**i, width / 2**i, channels_i)` for each i.

    Output shape:
        `(batch, num_classes)`, at least float32.

    Raises:
        ValueError: If there are not as many maps as `filters`.

    Example:

    >>> head = MultiscaleClassificationHead(10, filters=(4, 8), final_filters=32)
    >>> maps = [keras.ops.ones((2, 8, 8, 24)), keras.ops.ones((2, 4, 4, 24))]
    >>> tuple(head(maps).shape)
    (2, 10)

    Reference:
        [Wang et al., 2019](https://arxiv.org/abs/1908.07919).
    """

    def __init__(
        self,
        num_classes: int,
        filters: tuple[int, ...],
        final_filters: int,
        activation: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_classes = check_count("num_classes", num_classes)
        self.filters = check_counts("filters", filters)
        self.final_filters = check_count("final_filters", final_filters)
        self.activation = keras.activations.get(activation)
        self.blocks = [
            BottleneckBlock(width, name=f"block_{scale}", dtype=self.dtype_policy)
            for scale, width in enumerate(self.filters)
        ]
        self.downsamplings = [
            ConvolutionUnit(
                4 * width,
                3,
                strides=2,
                use_bias=True,
                name=f"downsampling_{scale}",
                dtype=self.dtype_policy,
            )
            for scale, width in enumerate(self.filters[1:])
        ]
        self.final_unit = ConvolutionUnit(
            self.final_filters,
            1,
            use_bias=True,
            name="final_unit",
            dtype=self.dtype_policy,
        )
        self.pooling = keras.layers.GlobalAveragePooling2D(
            name="pooling", dtype=self.dtype_policy
        )
        self.classifier = keras.layers.Dense(
            self.num_classes,
            activation=self.activation,
            name="classifier",
            dtype=self.fixed_policy(wide_dtype(self.compute_dtype)),
        )

    def build(self, maps_shape: Any) -> None:
        if len(maps_shape) != len(self.filters):
            raise ValueError(
                f"Layer '{self.name}' has `filters` for {len(self.filters)} scales. "
                f"Received: {len(maps_shape)} maps."
            )
        for block, shape in zip(self.blocks, maps_shape):
            block.build(shape)
        shape = self.blocks[0].compute_output_shape(maps_shape[0])
        for downsampling in self.downsamplings:
            downsampling.build(shape)
            shape = downsampling.compute_output_shape(shape)
        self.final_unit.build(shape)
        self.classifier.build((shape[0], self.final_filters))

    def call(self, maps: Any, training: bool | None = None) -> Any:
        first, *others = self.blocks
        total = first(maps[0], training=training)
        for block, downsampling, feature_map in zip(
            others, self.downsamplings, maps[1:]
        ):
            total = block(feature_map, training=training) + downsampling(
                total, training=training
            )
        return self.classifier(self.pooling(self.final_unit(total, training=training)))

    def compute_output_shape(self, maps_shape: Any) -> Any:
        return (maps_shape[0][0], self.num_classes)

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            **arguments_of(self, MultiscaleClassificationHead),
        }


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
        num_classes: int,
        scale: int = 4,
        kernel_size: int = 1,
        activation: Any = None,
        momentum: float = 0.99,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_classes = check_count("num_classes", num_classes)
        self.scale = check_count("scale", scale)
        self.kernel_size = check_side("kernel_size", kernel_size)
        self.activation = keras.activations.get(activation)
        self.momentum = check_rate("momentum", momentum)

    def build(self, maps_shape: Any) -> None:
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

    def call(self, maps: Any, training: bool | None = None) -> Any:
        _, height, width, _ = ops.shape(maps[0])
        # Resize small maps before the convolution, and the logits, which have fewer
        # channels than the features, after it.
        features = [maps[0]]
        features += [_resize_aligned(other, height, width) for other in maps[1:]]
        features = self.unit(ops.concatenate(features, axis=-1), training=training)
        logits = ops.cast(self.classifier(features), wide_dtype(self.compute_dtype))
        logits = _resize_aligned(logits, self.scale * height, self.scale * width)
        return self.activation(logits)

    def compute_output_shape(self, maps_shape: Any) -> Any:
        batch, *sizes, _ = maps_shape[0]
        return (
            batch,
            *(size and self.scale * size for size in sizes),
            self.num_classes,
        )

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            **arguments_of(self, MultiscaleSegmentationHead),
        }


def _resize_aligned(feature_map: Any, height: Any, width: Any) -> Any:
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
    # LiteRT cannot convert `einsum` of an unknown batch size.
    feature_map = ops.transpose(feature_map, (0, 2, 1, 3))  # (B, W, H, C)
    feature_map = ops.matmul(rows, feature_map)
    feature_map = ops.transpose(feature_map, (0, 2, 1, 3))  # (B, new H, W, C)
    return ops.matmul(columns, feature_map)


def _weights(size: Any, old_size: Any, dtype: Any) -> Any:
    """Returns the matrix `(size, old_size)` of the weights of old positions."""
    # Integers avoid rounding: |i (old - 1) - j (new - 1)|.
    new_steps = ops.maximum(size - 1, 1)
    centers = ops.expand_dims(ops.arange(size) * (old_size - 1), 1)
    distance = ops.abs(centers - ops.arange(old_size) * new_steps)
    weights = ops.maximum(new_steps - distance, 0)
    exact = wide_dtype(dtype)
    return ops.cast(ops.cast(weights, exact) / ops.cast(new_steps, exact), dtype)
