"""The language model on a DEQ-Transformer, and its preprocessor."""

from typing import Any

import keras
from keras import ops

from deq_keras.models.deq_transformer.deq_transformer_backbone import (
    DEQTransformerBackbone,
)
from deq_keras.models.deq_transformer.deq_transformer_presets import PRESETS
from deq_keras.models.language import LanguageCausalLM
from deq_keras.models.language.causal_lm import filled_positions
from deq_keras.models.language.preprocessor import TextPreprocessor


@keras.saving.register_keras_serializable(package="deq_keras")
class DEQTransformerCausalLMPreprocessor(TextPreprocessor):
    """Converts text to the token ids of a `DEQTransformerCausalLM`, and back.

    Accepts any tokenizer of KerasHub or `deq_keras.tokenizers`, with or without start,
    end and padding tokens.

    The positions of a `DEQTransformerBackbone` are relative and unlimited.
    `sequence_length` limits the computation: training truncates texts to this length,
    and generation stops there. A prompt that fills all positions raises a `ValueError`.

    Args:
        tokenizer: `keras_hub.tokenizers.Tokenizer` without a `sequence_length` of its
            own.
        sequence_length: Positive integer. Number of tokens of a training example, and
            the limit for a prompt with its generated text. Defaults to `1024`.
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


@keras.saving.register_keras_serializable(package="deq_keras")
class DEQTransformerCausalLM(LanguageCausalLM):
    """Language model that predicts the next token from an equilibrium.

    A `DEQTransformerBackbone` with an `AdaptiveSoftmax` on its hidden states; see
    `LanguageCausalLM`.

    `generate()` is incremental. The equilibrium of a prefix does not depend on later
    tokens, so each step solves only the new token, with the keys and values of the
    previous tokens.

    With a `memory_length`, consecutive batches of `fit` and `evaluate` are consecutive
    segments of the same texts, and every epoch and evaluation begins with an empty
    memory. The segments must therefore be in order: pass `shuffle=False`. Other calls,
    and exports, use no memory, except for calls within `reading_segments()`, each of
    which continues the previous one.

    Args:
        backbone: `DEQTransformerBackbone`.
        **kwargs: See `LanguageCausalLM`.

    Example:

    >>> backbone = DEQTransformerBackbone(
    ...     vocabulary_size=100, hidden_dim=16, num_heads=2, intermediate_dim=32)
    >>> model = DEQTransformerCausalLM(backbone)
    >>> model.compile(sampler="greedy")
    >>> prompt = {"token_ids": np.array([[1, 5, 3, 0, 0, 0]]),
    ...           "padding_mask": np.array([[1, 1, 1, 0, 0, 0]])}
    >>> output = model.generate(prompt, stop_token_ids=None)
    >>> output["token_ids"].shape
    (1, 6)

    Reference:
        [Bai, Kolter and Koltun, 2019](https://arxiv.org/abs/1909.01377), section 4.
    """

    backbone_cls = DEQTransformerBackbone
    preprocessor_cls = DEQTransformerCausalLMPreprocessor
    presets = PRESETS

    def generation_constants(self, max_length: int) -> Any:
        constants = {"cell": self.backbone.deq.cell.constants(max_length + 1)}
        if self.backbone.num_explicit_layers:
            explicit = self.segment_layer.explicit
            constants["explicit"] = explicit.constants(max_length + 1)
        return constants

    def read_after(
        self,
        embedded: Any,
        cache: Any = None,
        num_cached: Any = None,
        constants: Any = None,
        mask: Any = None,
    ) -> tuple[Any, Any]:
        # The equilibrium's keys and values come last.
        deq, constants = self.backbone.deq, constants or {}
        filled = None if cache is None else filled_positions(cache, num_cached)
        kept = []
        if self.backbone.num_explicit_layers:
            embedded, of_layers = self.segment_layer.explicit.apply_after(
                embedded,
                None if cache is None else cache[:, :-2],
                filled,
                constants.get("explicit"),
                mask,
            )
            kept.append(of_layers)
        inputs = {"inputs": embedded}
        if cache is not None:
            keys, values = cache[:, -2], cache[:, -1]
            inputs["memory"] = {"keys": keys, "values": values, "mask": filled}
        if constants:
            inputs["constants"] = constants["cell"]
        # The keys and values need the injection of the solve.
        injection = deq.inject(inputs, mask)
        problem = deq.problem(injection=injection, mask=mask)
        hidden = deq.solver.solve(problem, deq.request(problem)).value
        keys_and_values = deq.cell.keys_and_values(hidden, injection)
        kept.append(ops.stack(keys_and_values, axis=1))
        return hidden, ops.concatenate(kept, axis=1)
