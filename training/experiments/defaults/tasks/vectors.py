"""Tasks on vectors: smooth functions of four and of six numbers."""

import keras
import numpy as np

from deq_keras.layers import DenseCell, cell_from

from .task import Task, cell_of, dense, draw_with

_NOISE = 0.02


def smooth_function(x):
    """sin(pi x1) x2 + exp(-4 x3^2) cos(2 x4) - x1 x4 / 2, `(examples,)`."""
    x1, x2, x3, x4 = x.T
    bump = np.exp(-4.0 * x3**2) * np.cos(2.0 * x4)
    return np.sin(np.pi * x1) * x2 + bump - x1 * x4 / 2


def explained_variance(predictions, targets):
    """Returns the coefficient of determination R^2, in %."""
    error = np.mean(np.square(predictions - targets), dtype="float64")
    return 100.0 * float(1.0 - error / np.var(targets, dtype="float64"))


def _regression_examples(generator, size):
    """Draws x uniform on (-1, 1)^4 and noisy values `(1,)` of `smooth_function`."""
    inputs = generator.uniform(-1.0, 1.0, (size, 4))
    noise = generator.normal(0.0, _NOISE, size)
    return inputs, (smooth_function(inputs) + noise)[:, None]


def _tabular_examples(generator, size):
    """Draws x uniform on (-1, 1)^6 and noisy values `(1,)` of a smooth function.

    The function is `smooth_function` of the first four numbers + x5 x6 sin(2 x2).
    """
    inputs = generator.uniform(-1.0, 1.0, (size, 6))
    x2, x5, x6 = inputs[:, 1], inputs[:, 4], inputs[:, 5]
    targets = smooth_function(inputs[:, :4]) + x5 * x6 * np.sin(2.0 * x2)
    return inputs, (targets + generator.normal(0.0, _NOISE, size))[:, None]


def _regression(examples, cell):
    """Returns the task of a number, by R^2."""
    return Task(
        draw_with(examples),
        cell,
        dense(1),
        loss=keras.losses.MeanSquaredError,
        score=explained_variance,
    )


TASKS = {
    "regression": _regression(_regression_examples, cell_of(DenseCell)),
    "tabular_gru": _regression(
        _tabular_examples,
        lambda units: cell_from(keras.layers.GRUCell(units), name="cell"),
    ),
}
