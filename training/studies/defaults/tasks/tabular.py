"""A function of six numbers, by cells that converge at different speeds."""

import keras
import numpy as np

from ..cells import GatedCell, LeakyCell, NormalizedCell
from .regression import explained_variance
from .task import Task, dense, drawn, unseeded

_NOISE = 0.02


def _examples(generator, size):
    """Draws x uniform on (-1, 1)^6 and noisy values `(1,)` of a smooth function.

    The function is sin(pi x1) x2 + exp(-4 x3^2) cos(2 x4) - x1 x4 / 2
    + x5 x6 sin(2 x2).
    """
    inputs = generator.uniform(-1.0, 1.0, (size, 6))
    x1, x2, x3, x4, x5, x6 = inputs.T
    bump = np.exp(-4.0 * x3**2) * np.cos(2.0 * x4)
    product = x5 * x6 * np.sin(2.0 * x2)
    targets = np.sin(np.pi * x1) * x2 + bump - x1 * x4 / 2 + product
    return inputs, (targets + generator.normal(0.0, _NOISE, size))[:, None]


def _task(cell, **arguments):
    return Task(
        drawn(_examples),
        unseeded(cell, **arguments),
        dense(1),
        loss=keras.losses.MeanSquaredError,
        score=explained_variance,
    )


TABULAR_GATED = _task(GatedCell, retention=1.0)
TABULAR_LEAKY = _task(LeakyCell)
TABULAR_NORMALIZED = _task(NormalizedCell)
