"""The parts of a task, and functions that several tasks share."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np

from deq_keras.layers import GroupNormalization, cell_from

# Label of positions that loss and score ignore.
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
    """Returns the percentage of labels with the largest logit."""
    is_right = np.argmax(logits, axis=-1) == labels
    return 100.0 * float(np.mean(is_right[labels != IGNORED]))


class Task(NamedTuple):
    """A task.

    Attributes:
        draw: Function from `(DataConfig, seed)` to training and test `Examples`.
        cell: Function from `units` to the cell.
        decode: Function from the equilibrium to the prediction.
        encode: Function from `(input tensor, units)` to inputs of the `DEQ` layer.
        loss: Function that returns the Keras loss.
        score: Function from arrays `(predictions, targets)` to a number up to 100.
    """

    draw: Callable
    cell: Callable
    decode: Callable
    encode: Callable = lambda inputs, units: inputs
    loss: Callable[[], Any] = cross_entropy
    score: Callable = accuracy


def draw_with(examples):
    """Returns the `draw` of a task with generated examples.

    Args:
        examples: Function from `(generator, size)` to arrays of inputs and targets.
    """

    def draw(config, seed):
        generator = np.random.default_rng(seed)
        sizes = (
            config.train_examples or _TRAIN_EXAMPLES,
            config.test_examples or _TEST_EXAMPLES,
        )
        splits = []
        for size in sizes:
            inputs, targets = examples(generator, size)
            is_float = np.issubdtype(targets.dtype, np.floating)
            targets = targets.astype("float32" if is_float else "int32")
            splits.append(Examples(inputs.astype("float32"), targets))
        return tuple(splits)

    return draw


def cell_of(cls, **arguments):
    """Returns the `cell` of a task from a class."""

    def make(units):
        return cls(units, name="cell", **arguments)

    return make


def convolution_cell(channels=None, rank=1, groups=4):
    """Returns the `cell` of a task: one residual block of two convolutions.

        f(z, x) = norm(relu(z + W2 * relu(W1 * [z, x] + b1) + b2))

    All windows have three positions a side, so that information travels by at most two
    positions in an evaluation. The norm is a group norm over all positions.

    Args:
        channels: Positive integer. Channels of the inputs x. Defaults to `None`, as
            many as the state has.
        rank: Integer, 1 for sequences or 2 for images. Defaults to `1`.
        groups: Positive integer. Groups of channels of the norm. Defaults to `4`.
    """
    cls = keras.layers.Conv1D if rank == 1 else keras.layers.Conv2D

    def make(units):
        convolution = functools.partial(cls, units, 3, padding="same")
        joint = keras.Input((*[None] * rank, units + (channels or units)))
        change = convolution()(convolution(activation="relu")(joint))
        state = keras.layers.ReLU()(joint[..., :units] + change)
        block = keras.Model(joint, GroupNormalization(groups)(state))
        return cell_from(block, injection="concat", name="cell")

    return make


def dense(units):
    """Returns a `decode` with a dense layer at every position of the state."""

    def decode(state):
        return keras.layers.Dense(units, name="prediction")(state)

    return decode
