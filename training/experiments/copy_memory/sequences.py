"""The sequences of the copy memory task."""

import numpy as np

NUM_SYMBOLS = 10  # Symbols 1 to 8 are copied, 0 is blank, 9 marks the copy.
NUM_COPIED = 10


def copy_memory(num_sequences, delay, seed):
    """Draws sequences of symbols, and what is to be said at each position.

    Of `delay + 20` positions the first ten are symbols drawn from 1 to 8. Zeros follow,
    and eleven nines, of which the first says that the symbols are to be repeated: in
    the last ten positions. Whoever says nothing but zeros there, and all symbols alike,
    has a loss of `10 ln 8 / (delay + 20)`: 0.0495 for a delay of 400.

    Args:
        num_sequences: int. How many.
        delay: int. Positions between a symbol and its repetition, less ten.
        seed: int.

    Returns:
        Inputs and targets, int32 `(num_sequences, delay + 20)`.

    Source: Bai, Kolter and Koltun (2018), locuslab/TCN; the task is of Hochreiter and
    Schmidhuber (1997).
    """
    random = np.random.default_rng(seed)
    copied = random.integers(1, 9, (num_sequences, NUM_COPIED))
    shape = (num_sequences, delay + 2 * NUM_COPIED)
    inputs, targets = np.zeros(shape, "int32"), np.zeros(shape, "int32")
    inputs[:, :NUM_COPIED] = copied
    inputs[:, -NUM_COPIED - 1 :] = 9
    targets[:, -NUM_COPIED:] = copied
    return inputs, targets
