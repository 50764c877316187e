"""What makes each task: its examples, cell, layers around it, loss and score."""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np

from deq_keras.layers import DenseCell, ResidualBlockCell

from ...data.images.digits import NUM_CLASSES
from .attention_cell import AttentionCell
from .data import (
    SORTED_SYMBOLS,
    draw_digits,
    draw_regression,
    draw_sorting,
)


class Task(NamedTuple):
    """A task.

    Attributes:
        draw: `(TaskConfig, seed)` to training and test `Examples`.
        encode: `(input tensor, units)` to what the equilibrium layer is called with.
        cell: `(units, seed)` to the cell.
        decode: equilibrium to prediction.
        loss: makes the Keras loss.
        score: `(predictions, targets)` to a number of at most 100, as arrays.
    """

    draw: Callable
    encode: Callable
    cell: Callable
    decode: Callable
    loss: Callable[[], Any]
    score: Callable


def accuracy(logits, labels):
    """Returns the share of labels that the largest logit names, in %."""
    return 100.0 * float(np.mean(np.argmax(logits, axis=-1) == labels))


def explained_variance(predictions, targets):
    """Returns the coefficient of determination R^2, in %."""
    error = np.mean(np.square(predictions - targets), dtype="float64")
    return 100.0 * float(1.0 - error / np.var(targets, dtype="float64"))


def _unchanged(inputs, units):
    del units
    return inputs


def _flattened(inputs, units):
    del units
    return keras.layers.Flatten(name="flattening")(inputs)


def _stem(inputs, units):
    features = keras.layers.Conv2D(
        units, 3, padding="same", use_bias=False, name="stem_convolution"
    )(inputs)
    features = keras.layers.BatchNormalization(momentum=0.9, name="stem_normalization")(
        features
    )
    return keras.layers.ReLU(name="stem_activation")(features)


def _residual_block(units, seed):
    return ResidualBlockCell(units, expansion=2, groups=4, seed=seed, name="cell")


def _dense_cell(units, seed):
    return DenseCell(units, seed=seed, name="cell")


def _attention(units, seed):
    del seed  # Its layers draw from the global generator.
    return AttentionCell(units, name="cell")


def _pooled(state):
    state = keras.layers.GlobalAveragePooling2D(name="head_pooling")(state)
    return keras.layers.Dense(NUM_CLASSES, name="logits")(state)


def _with_positions(state):
    state = keras.layers.AveragePooling2D(2, name="head_pooling")(state)
    state = keras.layers.Flatten(name="head_flattening")(state)
    return keras.layers.Dense(NUM_CLASSES, name="logits")(state)


def _dense(units):
    def decode(state):
        return keras.layers.Dense(units, name="prediction")(state)

    return decode


def _cross_entropy():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


_IMAGES = Task(draw_digits, _stem, _residual_block, _pooled, _cross_entropy, accuracy)
TASKS = {
    "digits_pooled": _IMAGES,
    "digits_positions": _IMAGES._replace(decode=_with_positions),
    "digits_dense": _IMAGES._replace(
        encode=_flattened, cell=_dense_cell, decode=_dense(NUM_CLASSES)
    ),
    "sorting": Task(
        draw_sorting,
        _unchanged,
        _attention,
        _dense(SORTED_SYMBOLS),
        _cross_entropy,
        accuracy,
    ),
    "regression": Task(
        draw_regression,
        _unchanged,
        _dense_cell,
        _dense(1),
        keras.losses.MeanSquaredError,
        explained_variance,
    ),
}
