"""Generation of texts against the keys and values of the tokens before."""

from keras import ops

from deq_keras.models.incremental_generation import IncrementalGeneration


class KeyValueGeneration(IncrementalGeneration):
    """`IncrementalGeneration` of Transformers, which remember keys and values.

    A cache is a tensor `(batch, num_kept, num_heads, cache_length, head_dim)`: keys and
    values of the positions before, the last one last; two of an equilibrium, and two of
    each explicit layer.
    """

    def read_after(
        self, embedded, cache=None, cache_mask=None, constants=None, mask=None
    ):
        """Returns hidden states and their keys and values, in training's absence.

        Args:
            embedded: Tensor `(batch, length, features)`.
            cache: Optional cache of the positions before.
            cache_mask: Boolean tensor `(batch, cache_length)`: which of them there are.
            constants: Optional. What `generation_constants` returned.
            mask: Optional Boolean tensor `(batch, length)`, false at padding.

        Returns:
            Tuple of the hidden states `(batch, length, hidden_dim)`, and a cache of
            these positions.
        """
        raise NotImplementedError

    def call_with_cache(self, token_ids, cache, cache_update_index, constants=None):
        """See `IncrementalGeneration`."""
        cache_length = ops.shape(cache)[3]
        is_filled = ops.arange(cache_length) >= cache_length - cache_update_index
        mask = ops.broadcast_to(is_filled, (ops.shape(cache)[0], cache_length))
        embedded = self.backbone.token_embedding(token_ids)
        hidden, new = self.read_after(embedded, cache, mask, constants)
        cache = ops.concatenate([cache[:, :, :, 1:], new], axis=3)
        return self.softmax(hidden), hidden, cache

    def build_cache(self, token_ids, length):
        """See `IncrementalGeneration`; the cache has `max_length` positions."""
        max_length = ops.shape(token_ids)[1]
        # XLA must know all shapes; elsewhere a short prompt costs less.
        width = max_length if getattr(self, "jit_compile", False) else length + 1
        is_prompt = ops.broadcast_to(
            ops.arange(width) <= length, (ops.shape(token_ids)[0], width)
        )
        embedded = self.backbone.token_embedding(token_ids[:, :width])
        hidden, cache = self.read_after(embedded, mask=is_prompt)
        hidden = ops.pad(hidden, ((0, 0), (0, max_length - width), (0, 0)))
        # Behind `max_length` empty positions, a window that ends after `length`.
        padding = ((0, 0), (0, 0), (0, 0), (max_length, 0), (0, 0))
        window = ops.arange(max_length) + length
        return hidden, ops.take(ops.pad(cache, padding), window, axis=3)


class StackGeneration(KeyValueGeneration):
    """`KeyValueGeneration` of a backbone whose layers are a `TransformerStack`."""

    def read_after(
        self, embedded, cache=None, cache_mask=None, constants=None, mask=None
    ):
        return self.backbone.segment_layer.apply_after(
            embedded, cache, cache_mask, constants, mask
        )

    def generation_constants(self, max_length):
        return self.backbone.segment_layer.constants(max_length + 1)
