"""The task that language models share."""

from typing import Any

import keras
from keras import ops, tree
from keras_hub.models import CausalLM

from deq_keras.core.checks import check_boolean, check_count, check_rate
from deq_keras.core.serialization import Config
from deq_keras.layers import AdaptiveEmbedding, AdaptiveSoftmax, MixtureSoftmax
from deq_keras.models.kerashub import RestorableTask, head_dtype_config
from deq_keras.models.language.backbone import padding_mask_of, token_ids_of
from deq_keras.models.language.preprocessor import check_prompts
from deq_keras.models.language.segments import SegmentReading


class LanguageCausalLM(SegmentReading, RestorableTask, CausalLM):
    """A `LanguageBackbone` with an `AdaptiveSoftmax` or a `MixtureSoftmax`.

    Outputs are log-probabilities, which are logits whose softmax is the distribution
    itself.

    `generate` computes only new tokens. A cache stores the data of previous positions
    that a new token needs. By default, it is a tensor `(batch, num_kept, num_heads,
    cache_length, head_dim)` of keys and values, the latest position last, and
    `segment_layer` computes it. A subclass with another cache overrides `cache_axis`,
    `cache_lengths` and `read_after`.

    Args:
        backbone: `LanguageBackbone`.
        preprocessor: `keras_hub.models.CausalLMPreprocessor`, or `None` for inputs
            that are token ids already. Defaults to `None`.
        tie_weights: Boolean. Whether the softmax uses the tables of the embedding.
            Defaults to `True`.
        tie_projections: Tuple of Booleans, one for each bucket. Whether the bucket
            uses the projection of the embedding. Defaults to `None`: with
            `tie_weights` all buckets but the first, otherwise no bucket.
        num_experts: Positive integer. Number of mixed softmaxes. Values above 1 require
            an embedding without `cutoffs`. Defaults to `1`.
        expert_dropout: Float in `[0, 1)`. See `dropout_rate` of `MixtureSoftmax`.
            Defaults to `0.0`.
        compile: Boolean. Whether to compile with KerasHub's defaults. Defaults to
            `True`.
        name: String. Name of the model. Defaults to `None`.
        head_dtype: Dtype or policy of the softmax. Defaults to `None`, the backbone's.

    Call arguments:
        inputs: See `LanguageBackbone`.

    Input shape:
        `(batch, length)`.

    Output shape:
        `(batch, length, vocabulary_size)`.
    """

    # Axis of the positions in each tensor of a cache.
    cache_axis = 3

    def __init__(
        self,
        backbone: keras.Model,
        preprocessor: keras.layers.Layer | None = None,
        tie_weights: bool = True,
        *,
        tie_projections: tuple[bool, ...] | None = None,
        num_experts: int = 1,
        expert_dropout: float = 0.0,
        compile: bool = True,
        name: str | None = None,
        head_dtype: Any = None,
    ) -> None:
        # === Layers ===
        tie_weights = check_boolean("tie_weights", tie_weights)
        num_experts = check_count("num_experts", num_experts)
        expert_dropout = check_rate("expert_dropout", expert_dropout)
        if num_experts == 1 and expert_dropout > 0:
            raise ValueError(
                "`expert_dropout` applies to several softmaxes. Use `num_experts` > 1, "
                "or the `output_dropout` of the backbone. Received: "
                f"expert_dropout={expert_dropout}, num_experts=1."
            )
        if num_experts > 1 and tie_projections is not None:
            raise ValueError(
                "`tie_projections` applies to a single softmax: a mixture has no "
                "projections. Leave it out, or use `num_experts=1`. Received: "
                f"tie_projections={tie_projections}, num_experts={num_experts}."
            )
        policy = {"dtype": head_dtype or backbone.dtype_policy, "name": "softmax"}
        if num_experts == 1:
            embedding = _softmax_embedding(backbone, tie_weights)
            softmax = AdaptiveSoftmax(embedding, tie_weights, tie_projections, **policy)
        else:
            softmax = MixtureSoftmax(
                backbone.token_embedding,
                num_experts,
                tie_weights,
                dropout_rate=expert_dropout,
                **policy,
            )

        # === Functional Model ===
        super().__init__(backbone, softmax, preprocessor, compile, name)

        # === Config ===
        self.softmax = softmax
        self.num_experts = num_experts
        self.expert_dropout = expert_dropout
        self.head_dtype = head_dtype and softmax.dtype_policy

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        if padding_mask_of(inputs) is None:
            return super().call(token_ids_of(inputs), training=training, mask=mask)
        return self.softmax(self.backbone(inputs, training=training))

    def token_losses(self, token_ids: Any, targets: Any) -> Any:
        """Returns the symbolic losses of the targets, `(batch, length)`.

        Args:
            token_ids: Symbolic integer tensor `(batch, length)`.
            targets: Symbolic integer tensor `(batch, length)`.
        """
        return self.softmax(self.backbone(token_ids), targets)

    @property
    def segment_layer(self) -> Any:
        """The layer that remembers earlier segments."""
        return self.backbone.segment_layer

    def cache_lengths(self, max_length: int) -> Any:
        """Returns the number of positions in each tensor of a cache."""
        return max_length

    def generation_constants(self, max_length: int) -> Any:
        """Returns tensors that all tokens of texts of this length share."""
        return self.segment_layer.constants(max_length + 1)

    def read_after(
        self,
        embedded: Any,
        cache: Any = None,
        num_cached: Any = None,
        constants: Any = None,
        mask: Any = None,
    ) -> tuple[Any, Any]:
        """Computes hidden states after cached positions, outside of training.

        Args:
            embedded: Tensor `(batch, length, features)`.
            cache: Optional cache of previous positions.
            num_cached: Integer tensor. Number of tokens in the cache.
            constants: Optional. Value of `generation_constants`.
            mask: Optional Boolean tensor `(batch, length)`, false at padding.

        Returns:
            Tuple of the hidden states `(batch, length, hidden_dim)`, and the cached
            tensors of these `length` positions.
        """
        filled = None if cache is None else filled_positions(cache, num_cached)
        return self.segment_layer.apply_after(embedded, cache, filled, constants, mask)

    def build_cache(self, token_ids: Any, length: Any) -> tuple[Any, Any]:
        """Computes the beginning of prompts.

        Args:
            token_ids: Integer tensor `(batch, max_length)`.
            length: Integer tensor, less than `max_length`. Number of positions to
                cache. Computes only these positions and the next one.

        Returns:
            Tuple of the hidden states `(batch, max_length, hidden_dim)`, zero at
            positions that were not computed, and the cache for `call_with_cache`.
        """
        max_length = ops.shape(token_ids)[1]
        # XLA needs static shapes; without XLA, a short prompt costs less.
        width = max_length if getattr(self, "jit_compile", False) else length + 1
        is_prompt = ops.broadcast_to(
            ops.arange(width) <= length, (ops.shape(token_ids)[0], width)
        )
        embedded = self.backbone.token_embedding(token_ids[:, :width])
        hidden, read = self.read_after(embedded, mask=is_prompt)

        def window(tensor: Any, size: int) -> Any:
            """Returns the `size` positions before `length`; zeros before a text."""
            padding = [(0, 0)] * len(tensor.shape)
            padding[self.cache_axis] = (size, 0)
            positions = ops.arange(size) + length
            return ops.take(ops.pad(tensor, padding), positions, axis=self.cache_axis)

        cache = tree.map_structure(window, read, self.cache_lengths(max_length))
        return ops.pad(hidden, ((0, 0), (0, max_length - width), (0, 0))), cache

    def call_with_cache(
        self, token_ids: Any, cache: Any, cache_update_index: Any, constants: Any = None
    ) -> tuple[Any, Any, Any]:
        """Computes one new token from the cached previous positions.

        Args:
            token_ids: Integer tensor `(batch, 1)`.
            cache: Nest of tensors. The cache that `build_cache` returned.
            cache_update_index: Integer tensor. Position of the token.
            constants: Optional. Value of `generation_constants`.

        Returns:
            Tuple of the log-probabilities `(batch, 1, vocabulary_size)`, the hidden
            states `(batch, 1, hidden_dim)` and the cache with the token as its last
            position.
        """
        embedded = self.backbone.token_embedding(token_ids)
        hidden, read = self.read_after(embedded, cache, cache_update_index, constants)
        axis = self.cache_axis
        all_but_first = (slice(None),) * axis + (slice(1, None),)
        cache = tree.map_structure(
            lambda old, new: ops.concatenate([old[all_but_first], new], axis=axis),
            cache,
            read,
        )
        return self.softmax(hidden), hidden, cache

    def generate(
        self,
        inputs: Any,
        max_length: int | None = None,
        stop_token_ids: Any = "auto",
        strip_prompt: bool = False,
    ) -> Any:
        """See `keras_hub.models.CausalLM.generate`.

        `stop_token_ids="auto"` is the end token of the tokenizer. Without an end token,
        generation stops at `max_length`.
        """
        if self.preprocessor is None:
            if isinstance(inputs, dict):
                check_prompts(inputs)
        elif stop_token_ids == "auto":
            tokenizer = self.preprocessor.tokenizer
            if getattr(tokenizer, "end_token_id", None) is None:
                stop_token_ids = None
        return super().generate(inputs, max_length, stop_token_ids, strip_prompt)

    def generate_step(self, inputs: Any, stop_token_ids: Any = None) -> dict[str, Any]:
        """Generates for one batch of prompts.

        Args:
            inputs: Dict of `"token_ids"` and `"padding_mask"`, `(batch, max_length)`.
            stop_token_ids: Tuple of the ids that end a text, or `None`.

        Returns:
            Dict of the same keys and shapes.
        """
        # 1. Compute the positions that all prompts of the batch have, and cache them.
        # 2. Repeat: compute one more position, and let the sampler choose its token. A
        #    longer prompt keeps its own tokens there.
        # 3. Mark the tokens up to the first stop token of each text.
        token_ids, padding_mask = inputs["token_ids"], inputs["padding_mask"]
        max_length = ops.shape(token_ids)[1]
        index = ops.min(ops.sum(ops.cast(padding_mask, "int32"), axis=-1))
        hidden, cache = self.build_cache(token_ids, index - 1)
        constants = self.generation_constants(max_length)

        def next(prompt: Any, cache: Any, index: Any) -> Any:
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

    def get_compile_config(self) -> Any:
        config = super().get_compile_config()
        if not self.compiled:  # `compile` sets the sampler.
            return config
        sampler = keras.saving.serialize_keras_object(self.sampler)
        return {**config, "sampler": sampler}

    def get_config(self) -> Config:
        # Only an `AdaptiveSoftmax` holds projections.
        ties = getattr(self.softmax, "tie_projections", None)
        return {
            **super().get_config(),
            "tie_weights": self.softmax.tie_weights,
            "tie_projections": ties and list(ties),
            "num_experts": self.num_experts,
            "expert_dropout": self.expert_dropout,
            "head_dtype": head_dtype_config(self.softmax, self.head_dtype),
        }


def _softmax_embedding(backbone: Any, tie_weights: bool) -> Any:
    """Returns an embedding whose outputs have the size of the hidden states."""
    embedding, hidden_dim = backbone.token_embedding, backbone.hidden_dim
    if embedding.output_dim == hidden_dim:
        return embedding
    if tie_weights:
        raise ValueError(
            "Embedding and softmax can share one table only if its rows have the size "
            "of the hidden states. Use the same `embedding_dim` and `hidden_dim`, "
            "`tie_weights=False`, or `num_experts` > 1, whose experts have the size of "
            f"the embedding. Received: embedding_dim={embedding.embedding_dim}, "
            f"hidden_dim={hidden_dim}, tie_weights=True."
        )
    config = {"embedding_dim": hidden_dim, "output_dim": hidden_dim}
    return AdaptiveEmbedding.from_config({**embedding.get_config(), **config})


def filled_positions(cache: Any, num_cached: Any) -> Any:
    """Returns a mask `(batch, cache_length)` of the positions that hold a token.

    Args:
        cache: Tensor of keys and values, `(batch, num_kept, num_heads, cache_length,
            head_dim)`.
        num_cached: Integer tensor. Number of tokens in the cache, which are its last.
    """
    cache_length = ops.shape(cache)[3]
    is_filled = ops.arange(cache_length) >= cache_length - num_cached
    return ops.broadcast_to(is_filled, (ops.shape(cache)[0], cache_length))


def _until_stop(token_ids: Any, padding_mask: Any, stop_token_ids: Any) -> Any:
    """Returns a mask that is false after the first generated stop token."""
    if stop_token_ids is None:
        return ops.ones_like(token_ids, dtype="bool")
    is_generated = ops.logical_not(ops.cast(padding_mask, "bool"))
    stop_ids = ops.convert_to_tensor(list(stop_token_ids), token_ids.dtype)
    is_stop = ops.any(ops.equal(ops.expand_dims(token_ids, -1), stop_ids), axis=-1)
    stops = ops.cast(ops.logical_and(is_stop, is_generated), "int32")
    num_stops_before = ops.cumsum(stops, axis=-1) - stops
    return ops.equal(num_stops_before, 0)
