"""Pieces of words and their ids."""

import io

import numpy as np
import tensorflow as tf

import deq_keras

from ...errors import InputError
from . import token_ids


class SubwordVocabulary:
    """Ids of the pieces that words are made of, of `SubwordTokenizer`.

    Args:
        tokens: list of different str, in the order of ids, as `from_text` makes it.
        lower_case: bool. Whether `encode` makes text lower case. Defaults to `False`.

    Example:

    >>> text = "low lower lowest, new newer newest\\n" * 9
    >>> vocabulary = SubwordVocabulary.from_text(text, vocabulary_size=40)
    >>> vocabulary.decode(vocabulary.encode("newest, lower"))
    'newest, lower'
    """

    def __init__(self, tokens, lower_case=False):
        self.tokens = list(tokens)
        self.lower_case = lower_case
        self._tokenizer = self.tokenizer()

    @classmethod
    def from_text(cls, text, lower_case=False, *, vocabulary_size):
        """Returns the vocabulary of a training text.

        Args:
            text: str.
            lower_case: bool. Whether the text becomes lower case. Defaults to `False`.
            vocabulary_size: int. The most tokens, more than twice the number of
                different characters.

        Raises:
            InputError: if the vocabulary has no room for the characters.
        """
        try:
            tokenizer = deq_keras.tokenizers.SubwordTokenizer.learn(
                _lines(text), vocabulary_size, lower_case
            )
        except ValueError as error:
            raise InputError(str(error)) from error
        return cls(tokenizer.get_vocabulary(), lower_case)

    @property
    def size(self):
        """How many ids there are."""
        return len(self.tokens)

    def encode(self, text):
        """Returns the int32 ids `(num_tokens,)` of a text."""
        lines = tf.constant(_lines(text), tf.string)
        dataset = tf.data.Dataset.from_tensor_slices(lines).batch(1024)
        ids = [batch.flat_values.numpy() for batch in dataset.map(self._tokenizer)]
        return np.concatenate([np.zeros(0, np.int32), *ids])

    def decode(self, ids):
        """Returns the text of ids `(num_tokens,)`."""
        ids = token_ids.checked(ids, self.size)
        return self._tokenizer.detokenize(tf.constant(ids, tf.int32))

    def tokenizer(self):
        """Returns the Keras layer of the same ids."""
        return deq_keras.tokenizers.SubwordTokenizer(
            self.tokens, lowercase=self.lower_case
        )


def _lines(text):
    return list(io.StringIO(text, newline="\n"))
