"""A tokenizer of characters."""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from deq_keras.tokenizers.vocabulary_tokenizer import VocabularyTokenizer


@keras.saving.register_keras_serializable(package="deq_keras")
class CharacterTokenizer(VocabularyTokenizer):
    """Tokenizer of characters with a vocabulary.

    For models of a small alphabet: the ids of
    `keras_hub.tokenizers.UnicodeCodepointTokenizer` are the code points themselves,
    which require tables of 1.1 million tokens.

    A character that the vocabulary lacks becomes U+FFFD, the replacement character. If
    the vocabulary lacks this too, raises an error.

    Args:
        vocabulary: List of unique strings of one character, in the order of their ids.
            Defaults to `None`, to load it later.
        lowercase: Boolean. Whether to convert text to lower case. Defaults to `False`.
        dtype: Integer dtype of the ids. Defaults to `"int32"`.
        **kwargs: Arguments of `keras_hub.tokenizers.Tokenizer`, such as `name`.

    Call arguments:
        inputs: String, list of strings or string tensor.

    Example:

    >>> tokenizer = CharacterTokenizer(["a", "b", "n"])
    >>> tokenizer(["nab", "banana"])
    [[2, 0, 1], [1, 0, 2, 0, 2, 0]]
    >>> tokenizer.detokenize([2, 0, 1])
    'nab'
    >>> CharacterTokenizer.learn(["banana"]).get_vocabulary()
    ['a', 'b', 'n']
    """

    unknown_token = "\ufffd"
    token_kind = "strings of one character"

    @staticmethod
    def is_token(token: Any) -> bool:
        return isinstance(token, str) and len(token) == 1

    @staticmethod
    def count(text: str) -> str:
        return text

    @staticmethod
    def order(counts: Mapping[str, int]) -> list[str]:
        """Returns the characters in the order of their code points."""
        return sorted(counts)

    def split(self, texts: Any) -> Any:
        return tf.strings.unicode_split(texts, "UTF-8")

    def join(self, tokens: Any) -> Any:
        return tf.strings.reduce_join(tokens, axis=-1)
