"""From texts to the inputs of a DEQ-Transformer, and back."""

import keras

from deq_keras.models.deq_transformer.deq_transformer_backbone import (
    DEQTransformerBackbone,
)
from deq_keras.models.text_preprocessor import TextPreprocessor


@keras.saving.register_keras_serializable(package="deq_keras")
class DEQTransformerCausalLMPreprocessor(TextPreprocessor):
    """Text to the token ids of a `DEQTransformerCausalLM`, and back.

    Takes any tokenizer of KerasHub or `deq_keras.tokenizers`, with or without ids of
    the start and the end of a text, or of padding.

    The positions of a `DEQTransformerBackbone` are relative and have no limit.
    `sequence_length` limits what is computed: texts are cut to it in training, and
    generation fills it. A prompt that leaves no position free is refused.

    Args:
        tokenizer: `keras_hub.tokenizers.Tokenizer` without a `sequence_length` of its
            own.
        sequence_length: Positive integer. Number of tokens of a training example, and
            the most of a prompt and what is generated. Defaults to `1024`.
        add_start_token: Boolean. Whether texts begin with the tokenizer's start token,
            if it has one. Defaults to `True`.
        add_end_token: Boolean. Whether texts to train on end with the tokenizer's end
            token, if it has one. Defaults to `True`.
        **kwargs: Arguments of `keras_hub.models.CausalLMPreprocessor`, such as `name`.

    Call arguments:
        x: String, list of strings or string tensor.

    Returns:
        Tuple of the inputs, a dict of `"token_ids"` and `"padding_mask"`, the targets
        and the sample weights, all `(batch, sequence_length)`.

    Example:

    >>> preprocessor = DEQTransformerCausalLMPreprocessor(
    ...     deq_keras.tokenizers.CharacterTokenizer(["a", "b", "n"]))
    >>> inputs = preprocessor.generate_preprocess(["nab"], sequence_length=5)
    >>> inputs["token_ids"].numpy(), inputs["padding_mask"].numpy()
    (array([[2, 0, 1, 0, 0]], dtype=int32), array([[ True, True, True, False, False]]))
    >>> preprocessor.generate_postprocess(inputs)
    ['nab']
    """

    backbone_cls = DEQTransformerBackbone
