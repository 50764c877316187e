"""The curve that the scalar model learns."""

from typing import NamedTuple

import numpy as np


class Pairs(NamedTuple):
    """Inputs and noisy targets, `(examples, 1)` float32 each."""

    x: np.ndarray
    y: np.ndarray


def curve(x):
    """h(x) = 3/2 x^3 + x^2 - 5 x + 2 sin(x) - 3, the target without noise."""
    return 1.5 * x**3 + x**2 - 5.0 * x + 2.0 * np.sin(x) - 3.0


def draw(config, seed):
    """Draws the training and the validation pairs of a seed.

    Args:
        config: a `TargetConfig`.
        seed: int.

    Returns:
        Two `Pairs`.
    """
    generator = np.random.default_rng(seed)

    def pairs(size):
        x = generator.uniform(-config.limit, config.limit, (size, 1))
        y = curve(x) + generator.normal(0.0, config.noise, x.shape)
        return Pairs(x.astype("float32"), y.astype("float32"))

    return pairs(config.train_examples), pairs(config.validation_examples)
