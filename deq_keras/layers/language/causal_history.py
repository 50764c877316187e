"""What a causal convolution sees of the positions before a sequence."""

from keras import ops


def repeated_history(memory, num_positions):
    """Returns the last positions of a memory; where it is shorter, its first again.

    Args:
        memory: Tensor `(batch, memory_length, channels)`. An empty one stands for
            zeros.
        num_positions: Positive integer.

    Returns:
        Tensor `(batch, num_positions, channels)`.
    """
    length = ops.shape(memory)[1]
    # A zero in front, for an empty memory.
    padded = ops.pad(memory, ((0, 0), (1, 0), (0, 0)))
    indices = ops.arange(num_positions) + (length - num_positions)
    indices = ops.minimum(ops.maximum(indices, 0) + 1, length)
    return ops.take(padded, indices, axis=1)


def padded_history(memory, num_positions):
    """Returns the last positions of a memory; where it is shorter, zeros before it.

    See `repeated_history` for the arguments.
    """
    padded = ops.pad(memory, ((0, 0), (num_positions, 0), (0, 0)))
    return ops.take(padded, ops.arange(num_positions) + ops.shape(memory)[1], axis=1)


def convolve(history, sequence, kernel):
    """Convolves a sequence with what was before it, as far back as the taps reach.

    The length of the history tells how far apart the taps are. One product of matrices,
    of any order of derivatives on all devices, where convolutions lack some.

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
