"""The examples of the tasks: digits of the package, and two that are drawn."""

from typing import NamedTuple

import numpy as np

from ...data.images import digits

SORTED_LENGTH = 8
SORTED_SYMBOLS = 4
_TRAIN_EXAMPLES = 2048
_TEST_EXAMPLES = 1024
_NOISE = 0.02


class Examples(NamedTuple):
    """Inputs and targets, `(examples, ...)` each."""

    inputs: np.ndarray
    targets: np.ndarray


def draw_digits(config, seed):
    """Returns normalised images `(8, 8, 1)` and labels; the same for every seed.

    Args:
        config: a `TaskConfig`, for the numbers of examples.
        seed: int.

    Returns:
        `Examples` for training and for testing, as all functions here.
    """
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


def draw_sorting(config, seed):
    """Draws sequences of symbols; the target is the sequence in ascending order.

    The inputs are one-hot symbols beside one-hot positions, `(length, symbols +
    length)`, and the targets symbols, `(length,)`.
    """

    def examples(generator, size):
        symbols = generator.integers(SORTED_SYMBOLS, size=(size, SORTED_LENGTH))
        positions = np.broadcast_to(
            np.eye(SORTED_LENGTH), (size, SORTED_LENGTH, SORTED_LENGTH)
        )
        inputs = np.concatenate([np.eye(SORTED_SYMBOLS)[symbols], positions], axis=-1)
        targets = np.sort(symbols, axis=1)
        return Examples(inputs.astype("float32"), targets.astype("int32"))

    return _drawn(examples, config, seed)


def draw_regression(config, seed):
    """Draws x uniform on (-1, 1)^4 and noisy values `(1,)` of `smooth_function`."""

    def examples(generator, size):
        inputs = generator.uniform(-1.0, 1.0, (size, 4))
        noise = generator.normal(0.0, _NOISE, size)
        targets = (smooth_function(inputs) + noise)[:, None]
        return Examples(inputs.astype("float32"), targets.astype("float32"))

    return _drawn(examples, config, seed)


def smooth_function(x):
    """sin(pi x1) x2 + exp(-4 x3^2) cos(2 x4) - x1 x4 / 2, `(examples,)`."""
    x1, x2, x3, x4 = x.T
    bump = np.exp(-4.0 * x3**2) * np.cos(2.0 * x4)
    return np.sin(np.pi * x1) * x2 + bump - x1 * x4 / 2


def _drawn(examples, config, seed):
    sizes = (
        config.train_examples or _TRAIN_EXAMPLES,
        config.test_examples or _TEST_EXAMPLES,
    )
    generator = np.random.default_rng(seed)
    return tuple(examples(generator, size) for size in sizes)
