"""The handwritten digits, by images with two heads and by pixels."""

import keras

from deq_keras.layers import DenseCell, ResidualBlockCell

from ....data.images import digits
from .task import Examples, Task, cell_of, dense, pooled


def _draw(config, seed):
    """Returns normalized images `(8, 8, 1)` and labels; the same for every seed."""
    del seed
    sizes = config.train_examples, config.test_examples
    return tuple(
        Examples(
            ((split.images[:size] - digits.MEAN) / digits.STANDARD_DEVIATION).astype(
                "float32"
            ),
            split.labels[:size],
        )
        for split, size in zip(digits.load(), sizes, strict=True)
    )


def _stem(inputs, units):
    features = keras.layers.Conv2D(
        units, 3, padding="same", use_bias=False, name="stem_convolution"
    )(inputs)
    features = keras.layers.BatchNormalization(momentum=0.9, name="stem_normalization")(
        features
    )
    return keras.layers.ReLU(name="stem_activation")(features)


def _flattened(inputs, units):
    del units
    return keras.layers.Flatten(name="flattening")(inputs)


def _with_positions(state):
    state = keras.layers.AveragePooling2D(2, name="head_pooling")(state)
    state = keras.layers.Flatten(name="head_flattening")(state)
    return keras.layers.Dense(digits.NUM_CLASSES, name="logits")(state)


_BLOCK = cell_of(ResidualBlockCell, expansion=2, groups=4)
DIGITS_POOLED = Task(_draw, _BLOCK, pooled(digits.NUM_CLASSES), _stem)
DIGITS_POSITIONS = Task(_draw, _BLOCK, _with_positions, _stem)
DIGITS_DENSE = Task(_draw, cell_of(DenseCell), dense(digits.NUM_CLASSES), _flattened)
