"""The language model on a DEQ-Transformer."""

import keras
import numpy as np
from keras import ops

from deq_keras.models.deq_transformer.deq_transformer_backbone import (
    DEQTransformerBackbone,
)
from deq_keras.models.deq_transformer.deq_transformer_causal_lm_preprocessor import (
    DEQTransformerCausalLMPreprocessor,
)
from deq_keras.models.transformer_causal_lm import TransformerCausalLM


@keras.saving.register_keras_serializable(package="deq_keras")
class DEQTransformerCausalLM(TransformerCausalLM):
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

    def _solve(self, inputs, mask=None):
        """Returns the equilibrium, and its keys and values in one tensor."""
        deq = self.backbone.deq
        # What `deq.solve` does, whose injection the keys and values need again.
        injection = deq.inject(inputs, mask)
        hidden = deq.solve_injection(injection, mask=mask).value
        keys_and_values = deq.cell.keys_and_values(hidden, injection)
        return hidden, ops.stack(keys_and_values, axis=1)

    def generate(
        self, inputs, max_length=None, stop_token_ids="auto", strip_prompt=False
    ):
        """See `keras_hub.models.CausalLM.generate`.

        `stop_token_ids="auto"` is the end token of the tokenizer. If it has none, what
        is generated ends at `max_length`.
        """
        if self.preprocessor is None:
            _check_padding_mask(inputs)
        elif stop_token_ids == "auto":
            tokenizer = self.preprocessor.tokenizer
            if getattr(tokenizer, "end_token_id", None) is None:
                stop_token_ids = None
        return super().generate(inputs, max_length, stop_token_ids, strip_prompt)

    def generate_step(self, inputs, stop_token_ids=None):
        """Generates for one batch of prompts.

        Args:
            inputs: Dict of `"token_ids"` and `"padding_mask"`, `(batch, max_length)`.
            stop_token_ids: Tuple of the ids that end a text, or `None`.

        Returns:
            Dict of the same keys and shapes.
        """
        token_ids, padding_mask = inputs["token_ids"], inputs["padding_mask"]
        max_length = ops.shape(token_ids)[1]
        index = ops.min(ops.sum(ops.cast(padding_mask, "int32"), axis=-1))
        hidden, cache = self.build_cache(token_ids, index - 1)
        constants = self.backbone.deq.cell.constants(max_length + 1)

        def next(prompt, cache, index):
            token = ops.slice(prompt, [0, index - 1], [ops.shape(prompt)[0], 1])
            logits, hidden, cache = self.call_with_cache(
                token, cache, index - 1, constants
            )
            return ops.squeeze(logits, axis=1), ops.squeeze(hidden, axis=1), cache

        token_ids = self.sampler(
            next=next,
            prompt=token_ids,
            cache=cache,
            index=index,
            mask=padding_mask,
            stop_token_ids=stop_token_ids,
            hidden_states=hidden,
            model=self,
        )
        return {
            "token_ids": token_ids,
            "padding_mask": _until_stop(token_ids, padding_mask, stop_token_ids),
        }


def _check_padding_mask(inputs):
    """Refuses prompts without a token, or without a free position."""
    mask = inputs.get("padding_mask") if isinstance(inputs, dict) else None
    if mask is None:
        return
    lengths, max_length = np.sum(mask, axis=-1), np.shape(mask)[-1]
    if np.any(lengths == 0) or np.any(lengths >= max_length):
        raise ValueError(
            "A prompt must have at least one token to continue, and leave at least one "
            "position for what is generated: pad `token_ids` and `padding_mask`. "
            f"Received: prompts of {lengths} tokens in {max_length} positions."
        )


def _until_stop(token_ids, padding_mask, stop_token_ids):
    """Masks what follows the first generated stop token."""
    if stop_token_ids is None:
        return ops.ones_like(token_ids, dtype="bool")
    is_generated = ops.logical_not(ops.cast(padding_mask, "bool"))
    stop_ids = ops.convert_to_tensor(list(stop_token_ids), token_ids.dtype)
    is_stop = ops.any(ops.equal(ops.expand_dims(token_ids, -1), stop_ids), axis=-1)
    stops = ops.cast(ops.logical_and(is_stop, is_generated), "int32")
    num_stops_before = ops.cumsum(stops, axis=-1) - stops
    return ops.equal(num_stops_before, 0)
