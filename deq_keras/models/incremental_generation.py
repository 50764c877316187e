"""Generation of texts token by token, against what is remembered of those before."""

import numpy as np
from keras import ops


class IncrementalGeneration:
    """Mixin of language models that solve each new token alone; before `CausalLM`.

    A subclass says what is remembered: `build_cache` solves the beginning of prompts,
    `call_with_cache` a token after it.
    """

    def build_cache(self, token_ids, length):
        """Solves the beginning of prompts, and remembers it.

        Args:
            token_ids: Integer tensor `(batch, max_length)`.
            length: Integer tensor, less than `max_length`. How many positions to
                remember. They and the next one are solved, and nothing after that.

        Returns:
            Tuple of the hidden states `(batch, max_length, hidden_dim)`, zero after
            those that were solved, and the cache for `call_with_cache`.
        """
        raise NotImplementedError

    def call_with_cache(self, token_ids, cache, cache_update_index, constants=None):
        """Solves one new token against the tokens before it.

        Args:
            token_ids: Integer tensor `(batch, 1)`.
            cache: Nest of tensors of what is remembered.
            cache_update_index: Integer tensor. The position of the token: how many
                there are before it.
            constants: Optional. What `generation_constants` returned.

        Returns:
            Tuple of the log-probabilities `(batch, 1, vocabulary_size)`, the hidden
            states `(batch, 1, hidden_dim)` and the cache with the token.
        """
        raise NotImplementedError

    def generation_constants(self, max_length):
        """Returns what is computed once for all tokens of texts of that length."""
        raise NotImplementedError

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
        constants = self.generation_constants(max_length)

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
