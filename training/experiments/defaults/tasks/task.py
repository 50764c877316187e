"""What a task is made of, and what several tasks share."""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np

# The label of positions that neither loss nor score counts.
IGNORED = -1

_TRAIN_EXAMPLES = 2048
_TEST_EXAMPLES = 1024


class Examples(NamedTuple):
    """Inputs and targets, `(examples, ...)` each."""

    inputs: np.ndarray
    targets: np.ndarray


def cross_entropy(ignored=None):
    """Returns the loss of labels, excluding the `ignored` label."""
    return keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, ignore_class=ignored
    )


def accuracy(logits, labels):
    """Returns the share of labels that the largest logit names, in %."""
    is_right = np.argmax(logits, axis=-1) == labels
    return 100.0 * float(np.mean(is_right[labels != IGNORED]))


class Task(NamedTuple):
    """A task.

    Attributes:
        draw: `(DataConfig, seed)` to training and test `Examples`.
        cell: `units` to the cell.
        decode: equilibrium to prediction.
        encode: `(input tensor, units)` to what the equilibrium layer is called with.
        loss: makes the Keras loss.
        score: `(predictions, targets)` to a number of at most 100, as arrays.
    """

    draw: Callable
    cell: Callable
    decode: Callable
    encode: Callable = lambda inputs, units: inputs
    loss: Callable[[], Any] = cross_entropy
    score: Callable = accuracy


def drawn(examples):
    """Returns the `draw` of a task whose examples are made up.

    Args:
        examples: `(generator, size)` to arrays of inputs and targets.
    """

    def draw(config, seed):
        generator = np.random.default_rng(seed)
        sizes = (
            config.train_examples or _TRAIN_EXAMPLES,
            config.test_examples or _TEST_EXAMPLES,
        )
        return tuple(_narrow(*examples(generator, size)) for size in sizes)

    return draw


def cell_of(cls, **arguments):
    """Returns the `cell` of a task from a class."""

    def make(units):
        return cls(units, name="cell", **arguments)

    return make


def dense(units):
    """Returns the `decode` that is a dense layer at every position of the state."""

    def decode(state):
        return keras.layers.Dense(units, name="prediction")(state)

    return decode


def pooled(num_classes):
    """Returns the `decode` of images: a dense layer of the mean over all pixels."""

    def decode(state):
        state = keras.layers.GlobalAveragePooling2D(name="head_pooling")(state)
        return keras.layers.Dense(num_classes, name="logits")(state)

    return decode


def _narrow(inputs, targets):
    dtype = "float32" if np.issubdtype(targets.dtype, np.floating) else "int32"
    return Examples(inputs.astype("float32"), targets.astype(dtype))
