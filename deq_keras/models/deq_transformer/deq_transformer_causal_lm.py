"""The language model on a DEQ-Transformer."""

import keras
from keras import ops

from deq_keras.models.deq_transformer.deq_transformer_backbone import (
    DEQTransformerBackbone,
)
from deq_keras.models.deq_transformer.deq_transformer_causal_lm_preprocessor import (
    DEQTransformerCausalLMPreprocessor,
)
from deq_keras.models.incremental_generation import IncrementalGeneration
from deq_keras.models.transformer_causal_lm import TransformerCausalLM


@keras.saving.register_keras_serializable(package="deq_keras")
class DEQTransformerCausalLM(IncrementalGeneration, TransformerCausalLM):
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

    def call_with_cache(self, token_ids, cache, cache_update_index, constants=None):
        """Solves one new token against the tokens before it.

        Args:
            token_ids: Integer tensor `(batch, 1)`.
            cache: Tensor `(batch, 2, num_heads, cache_length, head_dim)`: keys and
                values of the positions before, the last one last.
            cache_update_index: Integer tensor. The position of the token: how many
                there are before it.
            constants: Optional. `TransformerCell.constants(cache_length + 1)`.

        Returns:
            Tuple of the log-probabilities `(batch, 1, vocabulary_size)`, the hidden
            states `(batch, 1, hidden_dim)` and the cache with the token as its last
            position.
        """
        cache_length = ops.shape(cache)[3]
        is_filled = ops.arange(cache_length) >= cache_length - cache_update_index
        mask = ops.broadcast_to(is_filled, (ops.shape(cache)[0], cache_length))
        inputs = {
            "inputs": self.backbone.token_embedding(token_ids),
            "memory": {"keys": cache[:, 0], "values": cache[:, 1], "mask": mask},
        }
        if constants is not None:
            inputs["constants"] = constants
        hidden, new = self._solve(inputs)
        cache = ops.concatenate([cache[:, :, :, 1:], new], axis=3)
        return self.softmax(hidden), hidden, cache

    def build_cache(self, token_ids, length):
        """Solves the beginning of prompts, and remembers it.

        Args:
            token_ids: Integer tensor `(batch, max_length)`.
            length: Integer tensor, less than `max_length`. How many positions to
                remember. They and the next one are solved, and nothing after that.

        Returns:
            Tuple of the hidden states `(batch, max_length, hidden_dim)`, zero after
            those that were solved, and the cache of the first `length` positions for
            `call_with_cache`, of the length `max_length`.
        """
        max_length = ops.shape(token_ids)[1]
        # XLA must know all shapes; elsewhere a short prompt costs less.
        width = max_length if getattr(self, "jit_compile", False) else length + 1
        is_prompt = ops.broadcast_to(
            ops.arange(width) <= length, (ops.shape(token_ids)[0], width)
        )
        embedded = self.backbone.token_embedding(token_ids[:, :width])
        hidden, cache = self._solve(embedded, is_prompt)
        hidden = ops.pad(hidden, ((0, 0), (0, max_length - width), (0, 0)))
        # Behind `max_length` empty positions, a window that ends after `length`.
        padding = ((0, 0), (0, 0), (0, 0), (max_length, 0), (0, 0))
        window = ops.arange(max_length) + length
        return hidden, ops.take(ops.pad(cache, padding), window, axis=3)

    def generation_constants(self, max_length):
        return self.backbone.deq.cell.constants(max_length + 1)

    def _solve(self, inputs, mask=None):
        """Returns the equilibrium, and its keys and values in one tensor."""
        deq = self.backbone.deq
        # What `deq.solve` does, whose injection the keys and values need again.
        injection = deq.inject(inputs, mask)
        hidden = deq.solve_injection(injection, mask=mask).value
        keys_and_values = deq.cell.keys_and_values(hidden, injection)
        return hidden, ops.stack(keys_and_values, axis=1)
