"""Strings of bits and the parities of their prefixes."""

import numpy as np

from .task import Levels, ReasoningTask, of_sequences


class PrefixSums(ReasoningTask):
    """The parity of every prefix of a string of fair bits.

    The input is a bit less one half, `(length, 1)`, the target at a position whether
    the bits up to it are an odd number of ones. The last position hangs on the first:
    information travels `length - 1` positions. Difficulty is the length.

    Example:

    >>> strings = PrefixSums().examples(np.random.default_rng(0), 2, 4)
    >>> strings.inputs.shape, strings.targets.shape
    ((2, 4, 1), (2, 4))

    Reference:

    - Schwarzschild et al. (2021), "Datasets for Studying Generalization from Easy to
      Hard Examples"
    """

    name = "prefix_sums"
    num_classes = 2
    channels = 1
    levels = Levels("the number of bits", 1, 2**14)

    def positions(self, level):
        return (level,)

    def _draw(self, generator, count, level, held_out):
        del held_out
        bits = generator.integers(2, size=(count, level), dtype="int32")
        parities = np.cumsum(bits, axis=1, dtype="int32") % 2
        inputs = (bits[..., None] - 0.5).astype("float32")
        return of_sequences(inputs, parities, level - 1)
