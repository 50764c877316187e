"""A tokenizer of words and line ends, in the order of adaptive softmaxes."""

import keras
import tensorflow as tf

from deq_keras.tokenizers import VocabularyTokenizer

END_OF_LINE = "<eos>"
# The characters that `str.split` treats as white space.
_WHITE_SPACE = r"[\t-\r\x1c-\x1f\x{85}\p{Z}]+"


@keras.saving.register_keras_serializable(package="deq_keras_training")
class WordTokenizer(VocabularyTokenizer):
    """Tokenizer of the words between white space, as in Transformer-XL.

    The vocabulary has `<eos>` first, then the words by descending count. The cutoffs of
    an adaptive softmax rely on this order.

    Every line end is the token `<eos>`. A text without a final line end is treated as
    an incomplete line. A word that the vocabulary lacks becomes `<unk>`. If the
    vocabulary lacks this too, raises an error.

    `<eos>` ends lines, not texts, so generation continues after it. To generate a
    single line, pass its id to `generate` as `stop_token_ids`.

    Args:
        vocabulary: List of unique strings, in the order of their ids. Defaults to
            `None`, to load it later.
        lowercase: Boolean. Whether to convert text to lower case. Defaults to `False`.
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
        """Returns `<eos>`, then words by descending count, ties by first occurrence."""
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
