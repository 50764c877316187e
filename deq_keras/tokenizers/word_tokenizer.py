"""A tokenizer of words, and of the ends of lines."""

import keras
import tensorflow as tf

from deq_keras.tokenizers.vocabulary_tokenizer import VocabularyTokenizer

END_OF_LINE = "<eos>"
# What `str.split` takes for white space.
_WHITE_SPACE = r"[\t-\r\x1c-\x1f\x{85}\p{Z}]+"


@keras.saving.register_keras_serializable(package="deq_keras")
class WordTokenizer(VocabularyTokenizer):
    """Tokenizer of the words between white space, as in Transformer-XL.

    Every line end is the token `<eos>`. A text that does not end with one is taken as
    the beginning of a line that is to be continued. A word that the vocabulary lacks
    becomes `<unk>`, and is an error where the vocabulary lacks that too.

    `<eos>` ends lines, not texts, so generation goes on after it. To generate one line
    pass its id to `generate` as `stop_token_ids`.

    Args:
        vocabulary: List of different strings, in the order of their ids. Defaults to
            `None`: to be loaded.
        lowercase: Boolean. Whether text becomes lower case. Defaults to `False`.
        dtype: Integer dtype of the ids. Defaults to `"int32"`.
        **kwargs: Arguments of `keras_hub.tokenizers.Tokenizer`, such as `name`.

    Call arguments:
        inputs: String, list of strings or string tensor.

    Example:

    >>> tokenizer = WordTokenizer(["<eos>", "to", "be", "or", "not", "<unk>"])
    >>> tokenizer(["to be or not", "so be it\\n"])
    [[1, 2, 3, 4], [5, 2, 5, 0]]
    >>> tokenizer.detokenize([1, 2, 0, 3])
    'to be\\nor'

    Reference:
        [Dai et al., 2019](https://arxiv.org/abs/1901.02860).
    """

    unknown_token = "<unk>"
    end_of_line = END_OF_LINE

    @staticmethod
    def count(text):
        return text.split()

    @staticmethod
    def order(counts):
        """`<eos>`, then the words by descending count, equal ones as they appear."""
        words = [word for word, _ in counts.most_common() if word != END_OF_LINE]
        return [END_OF_LINE, *words]

    def split(self, texts):
        texts = tf.strings.regex_replace(texts, "\n", f" {END_OF_LINE} ")
        return tf.strings.split(tf.strings.regex_replace(texts, _WHITE_SPACE, " "))

    def join(self, tokens):
        printed = tf.ragged.map_flat_values(
            lambda tokens: tf.where(tokens == END_OF_LINE, "\n", tokens), tokens
        )
        texts = tf.strings.reduce_join(printed, axis=-1, separator=" ")
        return tf.strings.regex_replace(texts, " ?\n ?", "\n")
