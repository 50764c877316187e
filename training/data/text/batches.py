"""Streams of segments for models that carry state from one segment to the next."""

import numpy as np
import tensorflow as tf

from ...errors import InputError


def segments(ids, batch_size, length, drop_remainder=False):
    """Cuts a text into parallel streams, and these into segments, in their order.

    The text is cut into `batch_size` contiguous streams of equal length `n`; up to
    `batch_size - 1` last tokens are dropped. Stream `b` is row `b` of every batch, and
    goes on in the next batch where it stopped. With `x` the streams,

        inputs  = x[:, t : t + s]
        targets = x[:, t + 1 : t + 1 + s]
        t = 0, length, 2 length, ...    s = min(length, n - 1 - t)

    as `LMOrderedIterator` of Transformer-XL, but batch first. Nothing is shuffled, and
    each iteration over the dataset starts again at the beginning of the streams.

    `tf.distribute` splits a batch along its first axis, so each replica has the same
    streams in all steps, and its states stay those of its own text.

    Args:
        ids: int array `(num_tokens,)`. It is held in memory, as int32.
        batch_size: int > 0. The number of streams, over all replicas.
        length: int > 0. Tokens of a segment.
        drop_remainder: bool. Whether the last segment is dropped if it is shorter.
            Defaults to `False`. A shorter one makes the length unknown in graphs
            (`None`), costs XLA one more compilation, and counts in Keras' mean loss as
            much as a whole one. Evaluation must not drop it.

    Returns:
        A `tf.data.Dataset` of known cardinality of `(inputs, targets)`, each int32
        `(batch_size, length)`.

    Raises:
        InputError: if the text is too short for such streams.
    """
    ids = _integers(ids)
    _check_positive(batch_size, length)
    stream_length = len(ids) // batch_size
    _check_stream(len(ids), batch_size, length if drop_remainder else 1)
    num_targets = stream_length - 1
    remainder = num_targets % length
    stop = num_targets - remainder if drop_remainder else num_targets
    has_shorter = remainder > 0 and not drop_remainder
    shape = (batch_size, None if has_shorter else length)
    with tf.device("CPU:0"):
        streams = tf.constant(
            ids[: batch_size * stream_length].reshape(batch_size, -1), tf.int32
        )  # (B, n)

    def segment(start):
        end = tf.minimum(start + length, num_targets)
        inputs, targets = streams[:, start:end], streams[:, start + 1 : end + 1]
        return tf.ensure_shape(inputs, shape), tf.ensure_shape(targets, shape)

    dataset = tf.data.Dataset.range(0, stop, length).map(segment)
    return dataset.prefetch(tf.data.AUTOTUNE)


def _integers(ids):
    ids = np.asarray(ids)
    if not ids.size:
        ids = ids.astype(np.int32)
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise InputError(
            "Token ids must be integers of shape (num_tokens,). Received: "
            f"shape={ids.shape}, dtype={ids.dtype}."
        )
    return ids


def _check_positive(batch_size, length):
    if batch_size < 1 or length < 1:
        raise InputError(
            "Batch size and length must be at least 1. Received: "
            f"batch_size={batch_size}, length={length}."
        )


def _check_stream(num_tokens, batch_size, num_targets):
    needed = batch_size * (num_targets + 1)
    if num_tokens < needed:
        raise InputError(
            f"A text of {num_tokens} tokens is too short for {batch_size} streams of "
            f"at least {num_targets + 1} tokens, which need {needed}. Give more text, "
            "a smaller batch size or shorter segments."
        )
