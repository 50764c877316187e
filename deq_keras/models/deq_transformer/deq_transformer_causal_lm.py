"""The language model on a DEQ-Transformer."""

import keras
from keras import ops

from deq_keras.models.deq_transformer.deq_transformer_backbone import (
    DEQTransformerBackbone,
)
from deq_keras.models.deq_transformer.deq_transformer_causal_lm_preprocessor import (
    DEQTransformerCausalLMPreprocessor,
)
from deq_keras.models.key_value_generation import KeyValueGeneration
from deq_keras.models.transformer_causal_lm import TransformerCausalLM


@keras.saving.register_keras_serializable(package="deq_keras")
class DEQTransformerCausalLM(KeyValueGeneration, TransformerCausalLM):
    """Language model that predicts the next token from an equilibrium.

    A `DEQTransformerBackbone` with an `AdaptiveSoftmax` on its hidden states. Outputs
    are log-probabilities, which are logits whose softmax is the distribution itself.

    `generate()` is incremental. An equilibrium is causal: that of a prefix does not
    depend on what follows, so each new token is solved alone, against the keys and
    values of the tokens before it.

    With a `memory_length`, consecutive batches of `fit` and `evaluate` are consecutive
    segments of the same texts, and every epoch and evaluation begins with an empty
    memory. The segments must therefore come in order: pass `shuffle=False`. Other
    calls, and exports, stand alone; those within `reading_segments()` continue each
    other.

    Args:
        backbone: `DEQTransformerBackbone`.
        preprocessor: `keras_hub.models.CausalLMPreprocessor`, or `None` for inputs
            that are token ids already. Defaults to `None`.
        tie_weights: Boolean. Whether the tables of the softmax are those of the
            embedding. Defaults to `True`.
        tie_projections: Tuple of Booleans, one for each bucket. Whether its projection
            is that of the embedding. Defaults to `None`: with `tie_weights` all but
            the first, otherwise none.
        compile: Boolean. Whether to compile with KerasHub's defaults. Defaults to
            `True`.
        name: String. Name of the model. Defaults to `None`.

    Call arguments:
        inputs: Integer tensor `(batch, length)`, or a dict of it as `"token_ids"`, with
            or without a `"padding_mask"`.

    Input shape:
        `(batch, length)`.

    Output shape:
        `(batch, length, vocabulary_size)`.

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

    def generation_constants(self, max_length):
        return self.backbone.deq.cell.constants(max_length + 1)

    def read_after(
        self, embedded, cache=None, cache_mask=None, constants=None, mask=None
    ):
        deq, inputs = self.backbone.deq, {"inputs": embedded}
        if cache is not None:
            keys, values = cache[:, 0], cache[:, 1]
            inputs["memory"] = {"keys": keys, "values": values, "mask": cache_mask}
        if constants is not None:
            inputs["constants"] = constants
        # What `deq.solve` does, whose injection the keys and values need again.
        injection = deq.inject(inputs, mask)
        problem = deq.problem(injection=injection, mask=mask)
        hidden = deq.solver.solve(problem, deq.request(problem)).value
        keys_and_values = deq.cell.keys_and_values(hidden, injection)
        return hidden, ops.stack(keys_and_values, axis=1)
