"""Texts as arrays of token ids, through a tokenizer."""

import itertools
import re

import numpy as np
import tensorflow as tf

from ...errors import InputError

# Lines end at "\n" only, as in files: `str.splitlines` knows ten more ends.
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_LINES_AT_ONCE = 1024


def lines(text):
    """Yields the lines of a text with their ends."""
    return (match.group() for match in _LINE.finditer(text))


def encode(tokenizer, text):
    """Returns the int32 ids `(num_tokens,)` of a text.

    Where the end of a line is a token, as `WordTokenizer` has it, a last line without
    an end has one too.

    Args:
        tokenizer: a tokenizer of `find_tokenizer`.
        text: str.

    Raises:
        InputError: for a token that the vocabulary lacks, if it also lacks the one that
            would stand for it.
    """
    if text and getattr(tokenizer, "end_of_line", None) and not text.endswith("\n"):
        text += "\n"
    rows, ids = lines(text), [np.zeros(0, np.int32)]
    tokenize = tf.function(
        lambda batch: tokenizer(batch).flat_values,
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    for first in itertools.count(1, _LINES_AT_ONCE):
        batch = list(itertools.islice(rows, _LINES_AT_ONCE))
        if not batch:
            return np.concatenate(ids)
        try:
            ids.append(tokenize(tf.constant(batch)).numpy())
        except tf.errors.InvalidArgumentError:
            _check_lines(tokenizer, batch, first)
            raise


def _check_lines(tokenizer, batch, first):
    for number, line in enumerate(batch, first):
        try:
            tokenizer.tokenize(line)  # Keras adds nothing to its error.
        except ValueError as error:
            raise InputError(
                f"Line {number} of the text: {error}. Use smaller tokens (characters "
                "or bytes), or make the vocabulary with `minimum_count=2`, which takes "
                f"rare tokens for {tokenizer.unknown_token!r}."
            ) from error
