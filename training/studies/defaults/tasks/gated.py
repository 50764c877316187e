"""The sign of a function of eight numbers, by a gated cell."""

import numpy as np

from ..cells import GatedCell
from .task import Task, dense, drawn, unseeded


def _examples(generator, size):
    """Draws x from N(0, 1)^8; the target is its class.

    It is 1 where x1 x2 + x3 x4 / 2 + sin(2 x5) > 0, and 0 elsewhere.
    """
    inputs = generator.normal(size=(size, 8))
    x1, x2, x3, x4, x5 = inputs.T[:5]
    return inputs, (x1 * x2 + x3 * x4 / 2 + np.sin(2.0 * x5) > 0).astype("int32")


GATED = Task(drawn(_examples), unseeded(GatedCell), dense(2))
