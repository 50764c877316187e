"""The parts of a task, and functions that several tasks share."""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

import deq_keras


class Task(NamedTuple):
    """A task.

    Attributes:
        draw: Function from `(num_train, seed)` to the pair `(inputs, targets)` of the
            training, and a dict from names to pairs of the tests.
        input_shape: Tuple. Shape of the inputs of one example.
        cell: Function that returns the cell.
        plain: Function from the input tensor to the prediction of a plain network.
        encode: Function from the input tensor to the inputs of the `DEQ` layer.
        decode: Function from the equilibrium to the prediction.
        loss: Name or function of a Keras loss.
        error: Function from arrays `(predictions, targets)` to the error.
    """

    draw: Callable
    input_shape: tuple
    cell: Callable
    plain: Callable
    encode: Callable = lambda inputs: inputs
    decode: Callable = lambda state: state
    loss: Any = "mse"
    error: Callable = lambda predictions, targets: relative_error(predictions, targets)


def relative_error(predictions, targets):
    """Returns the mean over examples of |prediction - target| / |target|."""
    axes = tuple(range(1, targets.ndim))
    squares = np.sum(np.square(predictions - targets), axis=axes, dtype="float64")
    return np.mean(np.sqrt(squares / np.sum(np.square(targets), axis=axes)))


def dense_network(units, num_outputs, activation=None):
    """Returns the `plain` of a task on vectors: two hidden layers."""

    def apply(inputs):
        hidden = keras.layers.Dense(units, "relu")(inputs)
        hidden = keras.layers.Dense(units, "relu")(hidden)
        return keras.layers.Dense(num_outputs, activation)(hidden)

    return apply


def true_solutions(cell, damping=1.0):
    """Returns a function from inputs to the equilibria of a cell with true weights."""
    solver = deq_keras.solvers.FixedPointIteration(3000, 1e-9, damping=damping)
    layer = deq_keras.layers.DEQ(cell, solver, "implicit", None)
    # An eager solve would take many times longer.
    return tf.function(lambda x: layer.solve(x).value, reduce_retracing=True)
