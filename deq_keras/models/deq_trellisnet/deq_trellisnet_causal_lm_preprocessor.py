"""From texts to the inputs of a DEQ-TrellisNet, and back."""

import keras

from deq_keras.models.deq_trellisnet.deq_trellisnet_backbone import (
    DEQTrellisNetBackbone,
)
from deq_keras.models.text_preprocessor import TextPreprocessor


@keras.saving.register_keras_serializable(package="deq_keras")
class DEQTrellisNetCausalLMPreprocessor(TextPreprocessor):
    """Text to the token ids of a `DEQTrellisNetCausalLM`, and back.

    The arguments are those of `DEQTransformerCausalLMPreprocessor`.

    Example:

    >>> preprocessor = DEQTrellisNetCausalLMPreprocessor(
    ...     deq_keras.tokenizers.CharacterTokenizer(["a", "b", "n"]))
    >>> inputs = preprocessor.generate_preprocess(["nab"], sequence_length=5)
    >>> preprocessor.generate_postprocess(inputs)
    ['nab']
    """

    backbone_cls = DEQTrellisNetBackbone
