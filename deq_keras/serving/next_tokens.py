"""The next token of each text as what is sent back."""

import tensorflow as tf


class NextTokens:
    """Tells the likeliest next token of each text: a `postprocessor` of exports.

    Args:
        tokenizer: `keras_hub.tokenizers.Tokenizer`.

    Call arguments:
        outputs: Float tensor `(batch, length, vocabulary_size)`.
        inputs: Dict with the `"padding_mask"` `(batch, length)` of a `Prompts`.
        failed: Ignored: a language model has no inputs that are not finite.

    Returns:
        String tensor `(batch,)`; empty for a text without tokens.
    """

    def __init__(self, tokenizer):
        size = tokenizer.vocabulary_size()
        self.tokens = [tokenizer.id_to_token(i) for i in range(size)]

    def __call__(self, outputs, inputs, failed=None):
        lengths = tf.reduce_sum(tf.cast(inputs["padding_mask"], tf.int32), axis=1)
        last = tf.gather(outputs, tf.maximum(lengths - 1, 0), axis=1, batch_dims=1)
        tokens = tf.gather(tf.constant(self.tokens), tf.argmax(last, axis=-1))
        return tf.where(lengths > 0, tokens, "")
