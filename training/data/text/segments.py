"""Turn texts into token ids, and these into streams of segments."""

import itertools
import re

import numpy as np
import tensorflow as tf

from ...errors import InputError
from ..pipeline import prefetch

# Lines end at "\n" only, as in files: `str.splitlines` knows ten more ends.
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_LINES_AT_ONCE = 1024


def lines(text):
    """Yields the lines of a text with their ends."""
    return (match.group() for match in _LINE.finditer(text))


def encode(tokenizer, text, name="text"):
    """Returns the int32 ids `(num_tokens,)` of a text.

    If ends of lines are tokens, as in `WordTokenizer`, an end is added to a last line
    without one.

    Args:
        tokenizer: Tokenizer from `find_tokenizer`.
        text: String.
        name: String. Name of the text in messages. Defaults to `"text"`.

    Raises:
        InputError: If the vocabulary has neither a token nor an unknown token.
    """
    if text and getattr(tokenizer, "end_of_line", None) and not text.endswith("\n"):
        text += "\n"
    rows, ids = lines(text), [np.zeros(0, np.int32)]
    tokenize = tf.function(
        lambda batch: tokenizer(batch).flat_values,
        input_signature=[tf.TensorSpec([None], tf.string)],
        autograph=False,
    )
    for first in itertools.count(1, _LINES_AT_ONCE):
        batch = list(itertools.islice(rows, _LINES_AT_ONCE))
        if not batch:
            return np.concatenate(ids)
        try:
            ids.append(tokenize(tf.constant(batch)).numpy())
        except tf.errors.InvalidArgumentError:
            _check_lines(tokenizer, batch, first, name)
            raise


def _check_lines(tokenizer, batch, first, name):
    for number, line in enumerate(batch, first):
        try:
            tokenizer.tokenize(line)  # Keras adds nothing to its error.
        except ValueError as error:
            raise InputError(
                f"Line {number} of the {name}: {error}. Use smaller tokens (characters "
                "or bytes), or make the vocabulary with `data.minimum_count=2`, which "
                f"takes rare tokens for {tokenizer.unknown_token!r}."
            ) from error


def segments(ids, batch_size, length, drop_remainder=False):
    """Cuts a text into parallel streams, and streams into consecutive segments.

    The text is cut into `batch_size` contiguous streams of equal length `n`; up to
    `batch_size - 1` last tokens are dropped. Stream `b` is row `b` of every batch and
    continues in the next batch. With `x` the streams,

        inputs  = x[:, t : t + s]
        targets = x[:, t + 1 : t + 1 + s]
        t = 0, length, 2 length, ...    s = min(length, n - 1 - t)

    like `LMOrderedIterator` of Transformer-XL, but batch first. Nothing is shuffled,
    and each iteration over the dataset starts at the beginning of the streams.

    `tf.distribute` splits a batch along its first axis, so each replica keeps the same
    streams in all steps, and its states continue its own text.

    Args:
        ids: Integer array `(num_tokens,)`. It is held in memory, as int32.
        batch_size: Positive integer. The number of streams, over all replicas.
        length: Positive integer. Tokens of a segment.
        drop_remainder: Boolean. Whether the last segment is dropped if it is shorter.
            Defaults to `False`. A shorter one makes the length unknown in graphs
            (`None`), costs XLA one more compilation, and counts in Keras' mean loss as
            much as a whole one. Evaluation must not drop it.

    Returns:
        A `tf.data.Dataset` of known cardinality of `(inputs, targets)`, each int32
        `(batch_size, length)`.

    Raises:
        InputError: If the text is too short for such streams.
    """
    stream_length = len(ids) // batch_size
    num_targets = stream_length - 1
    least = length if drop_remainder else 1
    if num_targets < least:
        raise InputError(
            f"A text of {len(ids)} tokens is too short for {batch_size} streams of at "
            f"least {least + 1} tokens, which need {batch_size * (least + 1)}. Give "
            "more text, a smaller batch size or shorter segments."
        )
    remainder = num_targets % length
    stop = num_targets - remainder if drop_remainder else num_targets
    has_shorter = remainder > 0 and not drop_remainder
    shape = (batch_size, None if has_shorter else length)
    with tf.device("CPU:0"):
        streams = tf.constant(
            np.reshape(ids[: batch_size * stream_length], (batch_size, -1)), tf.int32
        )  # (B, n)

    def segment(start):
        end = tf.minimum(start + length, num_targets)
        inputs, targets = streams[:, start:end], streams[:, start + 1 : end + 1]
        return tf.ensure_shape(inputs, shape), tf.ensure_shape(targets, shape)

    dataset = tf.data.Dataset.range(0, stop, length).map(segment)
    return prefetch(dataset)
