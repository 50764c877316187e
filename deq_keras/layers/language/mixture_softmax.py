"""Log-probabilities of the next token, from a mixture of softmaxes."""

import math
from typing import Any

import keras
from keras import ops

from deq_keras.core.checks import (
    check_boolean,
    check_count,
    check_positive,
    check_rate,
    check_seed,
)
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.core.structure import wide_dtype
from deq_keras.layers.language.adaptive_embedding import (
    AdaptiveEmbedding,
    check_token_ids,
)
from deq_keras.layers.language.adaptive_softmax import TiedSoftmax
from deq_keras.layers.variational_dropout import VariationalDropout


@keras.saving.register_keras_serializable(package="deq_keras")
class MixtureSoftmax(TiedSoftmax):
    """Computes log-probabilities of the next token with a mixture of softmaxes.

    The logits of a single softmax over d channels have at most rank d. A mixture of
    softmaxes avoids this limit (Yang et al., 2018). Each has its own projection of the
    hidden state, and all share one table:

    ```
    prior    = softmax(h @ prior_kernel + prior_bias)
    h_n      = tanh(mask * (h @ latent_kernel + latent_bias)_n)
    p(token) = sum_n prior_n softmax(h_n @ table^T + bias)[token] + epsilon
    ```

    Logits use the compute dtype. Softmax and sum use float32, or float64 with a float64
    policy. The mixture needs arrays `(batch, length, num_experts, vocabulary_size)`.

    Args:
        embedding: `AdaptiveEmbedding` without cutoffs and projection. Defines the sizes
            and provides the tied table.
        num_experts: Positive integer. Number of softmaxes.
        tie_weights: Boolean. Whether to share the table of the embedding. Defaults to
            `True`.
        dropout_rate: Float in `[0, 1)`. Rate at which channels of the experts'
            projections are dropped, for all positions of a sample. Defaults to `0.0`.
        epsilon: Positive float. Added to every probability to keep it nonzero. Defaults
            to `1e-8`, as in the reference, the authors' PyTorch code (locuslab/deq).
        seed: Integer. Seed of the dropout. Defaults to `None`, a random seed.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        hidden: Tensor of shape `(batch, length, features)`.
        targets: Optional integer tensor `(batch, length)`. If passed, the layer returns
            the losses of these tokens, in nats.
        training: Boolean. Whether to apply dropout.

    Input shape:
        `(batch, length, features)`.

    Output shape:
        `(batch, length, vocabulary_size)`, or `(batch, length)` with targets. The dtype
        is float32 (float64 with a float64 policy).

    Raises:
        ValueError: If an argument is invalid.

    Example:

    >>> softmax = MixtureSoftmax(AdaptiveEmbedding(100, 16), num_experts=3)
    >>> tuple(softmax(keras.random.normal((2, 5, 8))).shape)
    (2, 5, 100)

    Reference:
        [Yang et al., 2018](https://arxiv.org/abs/1711.03953).
    """

    def __init__(
        self,
        embedding: AdaptiveEmbedding,
        num_experts: int,
        tie_weights: bool = True,
        dropout_rate: float = 0.0,
        epsilon: float = 1e-8,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        is_embedding = isinstance(embedding, AdaptiveEmbedding)
        if not is_embedding or embedding.cutoffs or embedding.has_projections:
            raise ValueError(
                "`embedding` must be an AdaptiveEmbedding without cutoffs, whose "
                "embedding_dim is its output_dim: a mixture of softmaxes has one "
                "table. Received: "
                f"embedding={embedding.get_config() if is_embedding else embedding}."
            )
        tie_weights = check_boolean("tie_weights", tie_weights)
        super().__init__(embedding, tie_weights, **kwargs)
        self.num_experts = check_count("num_experts", num_experts)
        self.tie_weights = tie_weights
        self.epsilon = check_positive("epsilon", epsilon)
        self.seed = check_seed("seed", seed)
        width = embedding.embedding_dim
        self.prior = keras.layers.Dense(
            self.num_experts, name="prior", dtype=self.dtype_policy
        )
        self.latent = keras.layers.Dense(
            self.num_experts * width, name="latent", dtype=self.dtype_policy
        )
        self.dropout_rate = check_rate("dropout_rate", dropout_rate)
        self.dropout = VariationalDropout(
            self.dropout_rate,
            noise_shape=(None, 1, None),
            seed=self.seed,
            name="dropout",
            dtype=self.dtype_policy,
        )

    def build(self, hidden_shape: Any, targets_shape: Any = None) -> None:
        del targets_shape
        self.prior.build(hidden_shape)
        self.latent.build(hidden_shape)
        self._build_shared_weights()
        self._own_table = None
        if not self.tie_weights:
            self._own_table = self._add(
                "table",
                self.embedding.table_shapes[0],
                self.embedding.embeddings_initializer,
            )
        self.bias = self._add("bias", (self.embedding.vocabulary_size,))

    @property
    def table(self) -> Any:
        """Returns the (possibly tied) table `(vocabulary_size, embedding_dim)`."""
        return self.embedding.tables[0] if self.tie_weights else self._own_table

    def call(self, hidden: Any, targets: Any = None, training: bool = False) -> Any:
        latent = ops.tanh(self.dropout(self.latent(hidden), training=training))
        shape = (*ops.shape(hidden)[:2], self.num_experts, -1)
        latent = ops.reshape(latent, shape)  # (B, L, n, p)
        table = ops.cast(self.table, latent.dtype)
        logits = ops.matmul(latent, ops.transpose(table))
        logits = ops.cast(logits, wide_dtype(self.compute_dtype))
        logits = logits + ops.cast(self.bias, logits.dtype)
        experts = ops.log_softmax(logits)  # (B, L, n, V)
        prior = ops.log_softmax(ops.cast(self.prior(hidden), experts.dtype))
        mixed = ops.logsumexp(ops.expand_dims(prior, -1) + experts, axis=-2)
        mixed = ops.logaddexp(mixed, ops.cast(math.log(self.epsilon), mixed.dtype))
        if targets is None:
            return mixed
        targets = check_token_ids(targets, self.embedding.vocabulary_size)
        picked = ops.take_along_axis(mixed, ops.expand_dims(targets, -1), axis=-1)
        return -ops.squeeze(picked, -1)

    def get_config(self) -> Config:
        return {**super().get_config(), **arguments_of(self, MixtureSoftmax)}
