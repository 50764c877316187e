"""Causal convolutions over a sequence and the positions before it."""

from keras import ops


def repeated_history(memory, num_positions):
    """Returns the last positions of a memory, padded with copies of its first position.

    Args:
        memory: Tensor `(batch, memory_length, channels)`. If empty, the result is zero.
        num_positions: Positive integer. Number of positions to return.

    Returns:
        Tensor `(batch, num_positions, channels)`.
    """
    length = ops.shape(memory)[1]
    # Prepends a zero position, which represents an empty memory.
    padded = ops.pad(memory, ((0, 0), (1, 0), (0, 0)))
    indices = ops.arange(num_positions) + (length - num_positions)
    indices = ops.minimum(ops.maximum(indices, 0) + 1, length)
    return ops.take(padded, indices, axis=1)


def padded_history(memory, num_positions):
    """Returns the last positions of a memory, padded with zeros in front.

    See `repeated_history` for the arguments.
    """
    padded = ops.pad(memory, ((0, 0), (num_positions, 0), (0, 0)))
    return ops.take(padded, ops.arange(num_positions) + ops.shape(memory)[1], axis=1)


def convolve(history, sequence, kernel):
    """Convolves a sequence and its history, as far back as the taps reach.

    The length of the history determines the distance of the taps. Unlike convolutions,
    a single matrix product has derivatives of any order on all devices.

    Args:
        history: Tensor `(batch, (num_taps - 1) * distance, channels)`.
        sequence: Tensor `(batch, length, channels)`.
        kernel: Tensor `(num_taps, channels, filters)`.

    Returns:
        Tensor `(batch, length, filters)`.
    """
    num_taps, length = kernel.shape[0], ops.shape(sequence)[1]
    distance = history.shape[1] // (num_taps - 1)
    padded = ops.concatenate([history, sequence], axis=1)
    starts = [tap * distance for tap in range(num_taps)]
    seen = ops.concatenate(
        [padded[:, start : start + length] for start in starts], axis=-1
    )  # (B, L, k * channels)
    return ops.matmul(seen, ops.reshape(kernel, (-1, kernel.shape[-1])))
