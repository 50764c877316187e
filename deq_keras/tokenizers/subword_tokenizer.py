"""A tokenizer of pieces of words."""

import re

import keras
import tensorflow as tf
from keras_hub.tokenizers import WordPieceTokenizer, compute_word_piece_vocabulary

from deq_keras.tokenizers.vocabulary_tokenizer import python_strings

UNKNOWN = "\ufffd"
# Symbols that word splitting does not change.
_SPACE, _LINE_END = "\u2581", "\u240a"


@keras.saving.register_keras_serializable(package="deq_keras")
class SubwordTokenizer(WordPieceTokenizer):
    """WordPiece tokenizer that keeps spaces and line ends.

    `keras_hub.tokenizers.WordPieceTokenizer` loses white space: its text has a space
    between any two words and punctuation marks, and no lines. In this tokenizer, spaces
    are part of the words, as U+2581, and line ends are words, U+240A. `detokenize`
    returns the original text with three exceptions: words with unknown characters
    become U+FFFD, other kinds of spaces become plain spaces, and control and format
    characters are dropped.

    Args:
        vocabulary: List of unique strings, in the order of their ids, such as from
            `learn`. Defaults to `None`, to load it later.
        oov_token: String. Token of unknown words. Defaults to U+FFFD, the replacement
            character.
        **kwargs: Arguments of `keras_hub.tokenizers.WordPieceTokenizer`, such as
            `lowercase`.

    Call arguments:
        inputs: String, list of strings or string tensor.

    Example:

    >>> tokenizer = SubwordTokenizer.learn(["to be, or not to be\\n"] * 20, 30)
    >>> len(tokenizer("to be, or not"))
    5
    >>> tokenizer.detokenize(tokenizer("be, or\\nnot"))
    'be, or\\nnot'

    Reference:
        [Wu et al., 2016](https://arxiv.org/abs/1609.08144), section 4.1.
    """

    def __init__(self, vocabulary=None, oov_token=UNKNOWN, **kwargs):
        super().__init__(vocabulary, oov_token=oov_token, **kwargs)

    @classmethod
    def learn(cls, texts, vocabulary_size, lowercase=False):
        """Returns a tokenizer whose vocabulary is learned from a training text.

        Args:
            texts: Iterable or `tf.data.Dataset` of strings, such as lines.
            vocabulary_size: Positive integer. Maximum number of tokens. Must be more
                than twice the number of different characters.
            lowercase: Boolean. Whether to convert text to lower case. Defaults to
                `False`.
        """
        if not isinstance(texts, tf.data.Dataset):
            texts = tf.data.Dataset.from_tensor_slices(list(texts)).batch(1024)
        vocabulary = compute_word_piece_vocabulary(
            texts.map(_marked),
            vocabulary_size,
            lowercase=lowercase,
            reserved_tokens=[UNKNOWN],
        )
        _check_characters(vocabulary, vocabulary_size)
        return cls(vocabulary, lowercase=lowercase)

    def tokenize(self, inputs):
        return super().tokenize(_marked(tf.convert_to_tensor(inputs)))

    def detokenize(self, inputs):
        # A text to append to another can start inside a word.
        between = f"^{re.escape(self.suffix_indicator)}| "
        texts = tf.strings.regex_replace(super().detokenize(inputs), between, "")
        texts = tf.strings.regex_replace(texts, _SPACE, " ")
        return python_strings(tf.strings.regex_replace(texts, _LINE_END, "\n"))


def _marked(texts):
    """Replaces white space by marks, and splits at spaces where a word starts."""
    texts = tf.strings.regex_replace(texts, r"[\t\p{Z}]", _SPACE)
    # Limits a word to 8 spaces, because WordPiece rejects words of 100 bytes.
    texts = tf.strings.regex_replace(texts, f"{_SPACE}{{1,8}}", r" \0")
    return tf.strings.regex_replace(texts, "\n", f" {_LINE_END} ")


def _check_characters(vocabulary, vocabulary_size):
    """Raises `ValueError` if the vocabulary lacks characters, and so their words."""
    inside = {f"##{token}" for token in vocabulary[1:] if len(token) == 1}
    if not inside or not inside <= set(vocabulary):
        raise ValueError(
            "Argument `vocabulary_size` must be more than twice the number of "
            "different characters of the text: each is a token at the start of words "
            f"and one inside. Received: vocabulary_size={vocabulary_size}"
        )
