"""A smooth function of four numbers."""

import keras
import numpy as np

from deq_keras.layers import DenseCell

from .task import Task, dense, drawn

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


def _examples(generator, size):
    """Draws x uniform on (-1, 1)^4 and noisy values `(1,)` of `smooth_function`."""
    inputs = generator.uniform(-1.0, 1.0, (size, 4))
    noise = generator.normal(0.0, _NOISE, size)
    return inputs, (smooth_function(inputs) + noise)[:, None]


def _cell(units, seed):
    return DenseCell(units, seed=seed, name="cell")


REGRESSION = Task(
    drawn(_examples),
    _cell,
    dense(1),
    loss=keras.losses.MeanSquaredError,
    score=explained_variance,
)
