"""The sequences of the copy memory task."""

import numpy as np

NUM_SYMBOLS = 10  # Symbols 1 to 8 are copied, 0 is blank, 9 marks the copy.
NUM_COPIED = 10


def copy_memory(num_sequences, delay, seed):
    """Draws sequences of symbols and their targets.

    The first ten of `delay + 20` positions are symbols drawn from 1 to 8. Zeros follow,
    and then the symbol 9 eleven times, which requests the first ten symbols in the last
    ten positions. Without memory, the best prediction there is uniform over all
    symbols, with a loss of `10 ln 8 / (delay + 20)`: 0.0495 for a delay of 400.

    Args:
        num_sequences: Positive integer. Number of sequences.
        delay: Positive integer. A symbol and its repetition are `delay + 10` positions
            apart.
        seed: Integer. Seed of the sequences.

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
