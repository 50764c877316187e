"""Strings of bits and the parities of their prefixes."""

import numpy as np


def draw(generator, size, length):
    """Draws strings of fair bits.

    Args:
        generator: NumPy's `Generator`.
        size: int. How many.
        length: int. Bits of each.

    Returns:
        The bits less one half, float32 `(size, length, 1)`, and the parities of their
        prefixes, int32 `(size, length)`.
    """
    bits = generator.integers(2, size=(size, length), dtype="int32")
    inputs = (bits[..., None] - 0.5).astype("float32")
    return inputs, np.cumsum(bits, axis=1, dtype="int32") % 2
