"""Adaptive softmax: log-probabilities and losses of the next token."""

from typing import Any

import keras
import tensorflow as tf
from keras import ops

from deq_keras.core.checks import check_boolean
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.core.structure import wide_dtype
from deq_keras.layers.composite_layer import CompositeLayer
from deq_keras.layers.kernel_initializer import fresh
from deq_keras.layers.language.adaptive_embedding import (
    AdaptiveEmbedding,
    check_token_ids,
)


class TiedSoftmax(CompositeLayer):
    """Base class of layers that score tokens by the tables of an embedding.

    Args:
        embedding: `AdaptiveEmbedding`.
        shares_weights: Boolean. Whether the layer uses variables of the embedding.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.
    """

    def __init__(
        self, embedding: AdaptiveEmbedding, shares_weights: bool, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        self.shares_weights = shares_weights
        if not shares_weights:
            # Copies the sizes: this layer must not track the embedding's weights.
            embedding = AdaptiveEmbedding.from_config(embedding.get_config())
        self.embedding = embedding

    def _build_shared_weights(self) -> None:
        if self.shares_weights and not self.embedding.built:
            self.embedding.build((None, None))

    def _add(
        self, name: str, shape: tuple[int, ...], initializer: Any = "zeros"
    ) -> Any:
        # `loss` runs without Keras' autocast scope, so `call` must not rely on it.
        return self.add_weight(
            name=name, shape=shape, initializer=fresh(initializer), autocast=False
        )

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        # Ignored tokens already have a sample weight of zero.
        return None

    def compute_output_spec(
        self, hidden: Any, targets: Any = None, training: bool = False
    ) -> Any:
        shape = tuple(hidden.shape[:-1])
        if targets is None:
            shape = (*shape, self.embedding.vocabulary_size)
        return keras.KerasTensor(shape, dtype=wide_dtype(self.compute_dtype))

    @classmethod
    def from_config(cls, config: Config) -> Any:
        # Keras deduplicates layers within a file, so a loaded model has one embedding.
        return cls(**keras.saving.deserialize_keras_object(config))


@keras.saving.register_keras_serializable(package="deq_keras")
class AdaptiveSoftmax(TiedSoftmax):
    """Computes log-probabilities of the next token, in two steps for rare tokens.

    The vocabulary is split into the buckets of an `AdaptiveEmbedding`. A head scores
    the tokens of bucket 0 and the other buckets, the n clusters. The tail of cluster i
    scores the tokens of this cluster:

    ```
    head   = log_softmax([h_0 @ tables[0]^T + biases[0];
                          h_0 @ cluster_weight^T + cluster_bias])
    tail_i = log_softmax(h_i @ tables[i]^T + biases[i])
    log p(token) = head[token]                                   token in bucket 0
                 = head[size_0 + n - i] + tail_i[token - start_i]  token in cluster i
    ```

    with `h_i = hidden @ projections[i]^T`, so cluster 1 has the last column of the
    head, as in the reference, the authors' PyTorch code (locuslab/deq). Tied tables and
    projections are the variables of the embedding itself, so they have one gradient and
    one optimizer state.

    `call` returns all log-probabilities. `loss` returns the loss of the targets and
    evaluates each tail only for tokens of its cluster, which makes training with a
    large vocabulary cheap. Logits use the compute dtype. Softmax and biases use
    float32, or float64 with a float64 policy.

    A `.keras` file keeps the tie for a functional model that calls the embedding before
    this layer, and for any model whose constructor creates both layers.
    `keras.models.clone_model` breaks the tie. If the embedding belongs to a functional
    model nested in another model, loading raises an error.

    Args:
        embedding: `AdaptiveEmbedding`. Defines the sizes and provides the tied weights.
        tie_weights: Boolean. Whether to share the tables of the embedding. Otherwise,
            the layer has its own tables of the same shapes. Defaults to `True`.
        tie_projections: Tuple of Booleans, one per bucket. Whether to share the
            projection of the embedding. Ignored if the embedding lacks projections.
            Defaults to `None`: with `tie_weights`, all except the first are tied, as in
            the reference; otherwise all are untied.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    The layer's own weights use the initializers of the embedding. Biases start at zero.

    Call arguments:
        hidden: Tensor of shape `(batch, length, output_dim)`, with the `output_dim`
            of the embedding.
        targets: Optional integer tensor `(batch, length)`. If passed, the layer returns
            the result of `loss`.

    Input shape:
        `(batch, length, output_dim)`, or any other rank with this last axis.

    Output shape:
        `(batch, length, vocabulary_size)`, or `(batch, length)` with targets. The dtype
        is float32 (float64 with a float64 policy).

    Raises:
        ValueError: If an argument is invalid, or the last axis of the inputs is not
            `output_dim`.

    Example:

    >>> embedding = AdaptiveEmbedding(1000, 16, cutoffs=(100, 400), div_val=4)
    >>> softmax = AdaptiveSoftmax(embedding)
    >>> hidden = embedding(np.array([[1, 2, 3], [150, 500, 999]]))
    >>> tuple(softmax(hidden).shape)
    (2, 3, 1000)
    >>> tuple(softmax.loss(hidden, np.array([[2, 3, 4], [500, 999, 7]])).shape)
    (2, 3)

    Reference:
        [Joulin et al., 2017](https://arxiv.org/abs/1609.04309), efficient softmax
        approximation for GPUs; [Baevski and Auli,
        2019](https://arxiv.org/abs/1809.10853) for smaller rows and the tie.
    """

    def __init__(
        self,
        embedding: AdaptiveEmbedding,
        tie_weights: bool = True,
        tie_projections: tuple[bool, ...] | None = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(embedding, AdaptiveEmbedding):
            raise ValueError(
                "`embedding` must be an AdaptiveEmbedding layer. Received: "
                f"embedding={embedding} (of type {type(embedding).__name__})."
            )
        tie_weights = check_boolean("tie_weights", tie_weights)
        num_clusters = len(embedding.cutoffs)
        ties = tie_projections
        if ties is None:
            ties = (False,) + (tie_weights,) * num_clusters
        if not isinstance(ties, (list, tuple)) or len(ties) != num_clusters + 1:
            raise ValueError(
                f"`tie_projections` must be a tuple of Booleans, one for each of the "
                f"{num_clusters + 1} buckets. Received: tie_projections={ties}."
            )
        ties = tuple(
            check_boolean(f"tie_projections[{bucket}]", tie)
            for bucket, tie in enumerate(ties)
        )
        super().__init__(embedding, tie_weights or any(ties), **kwargs)
        self.num_clusters = num_clusters
        self.tie_weights = tie_weights
        self.tie_projections = ties

    def build(self, hidden_shape: Any, targets_shape: Any = None) -> None:
        del targets_shape
        embedding = self.embedding
        if hidden_shape[-1] != embedding.output_dim:
            raise ValueError(
                f"Layer '{self.name}' needs inputs whose last axis is the output_dim="
                f"{embedding.output_dim} of its embedding. Received: inputs of shape "
                f"{tuple(hidden_shape)}"
            )
        self._build_shared_weights()
        self._own_tables = []
        if not self.tie_weights:
            self._own_tables = [
                self._add(f"table_{i}", shape, embedding.embeddings_initializer)
                for i, shape in enumerate(embedding.table_shapes)
            ]
        self._own_projections = [
            self._add_projection(i) for i in range(self.num_clusters + 1)
        ]
        self.biases = [
            self._add(f"bias_{i}", (size,))
            for i, (size, _) in enumerate(embedding.table_shapes)
        ]
        if self.num_clusters:
            shape = (self.num_clusters, embedding.embedding_dim)
            self.cluster_weight = self._add(
                "cluster_weight", shape, embedding.embeddings_initializer
            )
            self.cluster_bias = self._add("cluster_bias", shape[:1])

    def _add_projection(self, bucket: int) -> Any:
        """Adds a projection for a bucket, even if all buckets share one table."""
        embedding = self.embedding
        if self.tie_projections[bucket] or not embedding.has_projections:
            return None
        _, width = embedding.table_shapes[self._table_of(bucket)]
        return self._add(
            f"projection_{bucket}",
            (width, embedding.output_dim),
            embedding.projection_initializer,
        )

    def _table_of(self, bucket: int) -> Any:
        return 0 if self.embedding.div_val == 1 else bucket

    @property
    def tables(self) -> Any:
        """Returns the list of tables, shared with the embedding if tied."""
        return self.embedding.tables if self.tie_weights else self._own_tables

    @property
    def projections(self) -> Any:
        """Returns a list with the projection of each bucket, or `None` for each."""
        return [
            self.embedding.projections[self._table_of(i)] if is_tied else own
            for i, (is_tied, own) in enumerate(
                zip(self.tie_projections, self._own_projections, strict=True)
            )
        ]

    def call(self, hidden: Any, targets: Any = None) -> Any:
        if targets is not None:
            return self.loss(hidden, targets)
        head = ops.log_softmax(self._logits(hidden, 0))
        size = self.embedding.bucket_bounds[0][1]
        log_probabilities = [head[..., :size]]
        for i in range(1, self.num_clusters + 1):
            column = size + self.num_clusters - i
            tail = ops.log_softmax(self._logits(hidden, i))
            log_probabilities.append(head[..., column : column + 1] + tail)
        return ops.concatenate(log_probabilities, axis=-1)

    def loss(self, hidden: Any, targets: Any) -> Any:
        """Returns the negative log-likelihood of each target.

        Equals `-call(hidden)` at the targets, without an array of size
        `(tokens, vocabulary)`: the head scores all tokens, and a tail only tokens in
        its cluster. XLA requires static shapes, so each compiled tail is as slow as for
        all tokens. Train with `jit_compile=False`.

        Args:
            hidden: Tensor of shape `(batch, length, output_dim)`.
            targets: Integer tensor of shape `(batch, length)`.

        Returns:
            Tensor of shape `(batch, length)`. Losses in nats, with the dtype of the
            log-probabilities.
        """
        hidden = ops.convert_to_tensor(hidden)
        targets = check_token_ids(targets, self.embedding.vocabulary_size)
        if not targets.shape.is_compatible_with(hidden.shape[:-1]):
            raise ValueError(
                f"Layer '{self.name}' needs one target for each hidden state. "
                f"Received: hidden of shape {tuple(hidden.shape)}, targets of shape "
                f"{tuple(targets.shape)}"
            )
        if not self.built:
            self.build(hidden.shape)
        states = ops.reshape(hidden, (-1, self.embedding.output_dim))  # (tokens, d)
        tokens = ops.reshape(targets, (-1,))  # (tokens,)
        # The head's target of a token in a cluster is the column of this cluster.
        head_targets, size = tokens, self.embedding.bucket_bounds[0][1]
        for i, (start, _) in enumerate(self.embedding.bucket_bounds[1:], start=1):
            column = ops.cast(size + self.num_clusters - i, tokens.dtype)
            head_targets = ops.where(tokens >= start, column, head_targets)
        losses = _cross_entropy(head_targets, self._logits(states, 0))
        for i in range(1, self.num_clusters + 1):
            start, end = self.embedding.bucket_bounds[i]
            is_in_cluster = ops.logical_and(tokens >= start, tokens < end)
            # The number of tokens depends on their values. No op of Keras gathers
            # them, and with a mask every tail would score every token.
            where = tf.where(is_in_cluster)  # (tokens of the cluster, 1)
            tail = _cross_entropy(
                tf.gather_nd(tokens, where) - start,
                self._logits(tf.gather_nd(states, where), i),
            )
            losses = tf.tensor_scatter_nd_add(losses, where, tail)
        return ops.reshape(losses, ops.shape(targets))  # (batch, length)

    def _logits(self, hidden: Any, bucket: int) -> Any:
        """Returns scores of a bucket's tokens, and of the clusters for bucket 0."""
        index = self._table_of(bucket)
        table, bias = self.tables[index], self.biases[index]
        if self.embedding.div_val == 1:
            start, end = self.embedding.bucket_bounds[bucket]
            table, bias = table[start:end], bias[start:end]
        if bucket == 0 and self.num_clusters:
            table = ops.concatenate([table, self.cluster_weight], axis=0)
            bias = ops.concatenate([bias, self.cluster_bias], axis=0)
        hidden = ops.cast(hidden, self.compute_dtype)
        projection = self.projections[bucket]
        if projection is not None:
            hidden = _matmul_transposed(hidden, projection)  # (..., width)
        logits = _matmul_transposed(hidden, table)  # (..., columns)
        dtype = wide_dtype(self.compute_dtype)
        return ops.cast(logits, dtype) + ops.cast(bias, dtype)

    def get_config(self) -> Config:
        return {**super().get_config(), **arguments_of(self, AdaptiveSoftmax)}


def _matmul_transposed(inputs: Any, matrix: Any) -> Any:
    return ops.matmul(inputs, ops.transpose(ops.cast(matrix, inputs.dtype)))


def _cross_entropy(targets: Any, logits: Any) -> Any:
    return ops.sparse_categorical_crossentropy(targets, logits, from_logits=True)
