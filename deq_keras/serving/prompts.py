"""Texts as what is sent to a language model."""

import tensorflow as tf
from keras_hub.layers import StartEndPacker

from deq_keras.checks import check_count


class Prompts(tf.Module):
    """Turns texts into token ids in the graph: a `preprocessor` of exports.

    Texts are cut to a length, or padded, and padding changes no answer. A tokenizer
    that knows no token in the place of unknown ones fails a whole request for one of
    them, and is refused by the check of an export.

    Args:
        tokenizer: `keras_hub.tokenizers.Tokenizer` that works in a graph, such as those
            of `deq_keras.tokenizers`.
        sequence_length: Positive integer. Number of tokens.

    Call arguments:
        texts: String tensor `(batch,)`.

    Returns:
        Dict of `"token_ids"` and `"padding_mask"`, `(batch, sequence_length)`: the
        inputs of a `deq_keras.models.DEQTransformerCausalLM`.

    Example:

    >>> tokenizer = deq_keras.tokenizers.WordTokenizer(["<unk>", "to", "be", "or"])
    >>> Prompts(tokenizer, 4)(tf.constant(["to be", "or not to be"]))["token_ids"]
    <tf.Tensor: shape=(2, 4), dtype=int32, numpy=
    array([[1, 2, 0, 0],
           [3, 0, 1, 2]], dtype=int32)>
    """

    input_signature = tf.TensorSpec((None,), tf.string, name="inputs")

    def __init__(self, tokenizer, sequence_length):
        super().__init__()
        self.tokenizer = tokenizer
        self.packer = StartEndPacker(
            check_count("sequence_length", sequence_length), return_padding_mask=True
        )

    def __call__(self, texts):
        token_ids, padding_mask = self.packer(self.tokenizer(texts))
        return {"token_ids": token_ids, "padding_mask": padding_mask}
