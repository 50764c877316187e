"""The classification head of multiscale equilibrium models."""

import keras

from deq_keras.core.checks import check_count, check_counts
from deq_keras.core.serialization import arguments_of
from deq_keras.core.structure import wide_dtype
from deq_keras.layers.composite_layer import CompositeLayer
from deq_keras.layers.vision.bottleneck_block import BottleneckBlock
from deq_keras.layers.vision.convolution_unit import ConvolutionUnit


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

    def __init__(self, num_classes, filters, final_filters, activation=None, **kwargs):
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

    def build(self, maps_shape):
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

    def call(self, maps, training=None):
        first, *others = self.blocks
        total = first(maps[0], training=training)
        for block, downsampling, feature_map in zip(
            others, self.downsamplings, maps[1:]
        ):
            total = block(feature_map, training=training) + downsampling(
                total, training=training
            )
        return self.classifier(self.pooling(self.final_unit(total, training=training)))

    def compute_output_shape(self, maps_shape):
        return (maps_shape[0][0], self.num_classes)

    def get_config(self):
        return {
            **super().get_config(),
            **arguments_of(self, MultiscaleClassificationHead),
        }
