"""Log-probabilities and losses of the next token, by frequency."""

import keras
import tensorflow as tf
from keras import ops

from deq_keras.core.checks import check_boolean
from deq_keras.layers.kernel_initializer import fresh
from deq_keras.layers.language.adaptive_embedding import AdaptiveEmbedding
from deq_keras.layers.language.token_check import check_token_ids


@keras.saving.register_keras_serializable(package="deq_keras")
class AdaptiveSoftmax(keras.layers.Layer):
    """Log-probabilities of the next token, in two steps for rare tokens.

    The vocabulary is cut into the buckets of an `AdaptiveEmbedding`. A head chooses
    among the tokens of bucket 0 and the other buckets, the n clusters; within cluster
    i a tail chooses the token:

    ```
    head   = log_softmax([h_0 @ tables[0]^T + biases[0];
                          h_0 @ cluster_weight^T + cluster_bias])
    tail_i = log_softmax(h_i @ tables[i]^T + biases[i])
    log p(token) = head[token]                                   token in bucket 0
                 = head[size_0 + n - i] + tail_i[token - start_i]  token in cluster i
    ```

    with `h_i = hidden @ projections[i]^T`, so cluster 1 has the last column of the
    head, as in the reference, the authors' PyTorch code (locuslab/deq). Tables and
    projections are the very variables of the embedding where they are tied: they have
    one gradient and one state in the optimizer.

    `call` returns all log-probabilities. `loss` returns the loss of given tokens and
    evaluates a tail for its own tokens only, which is what makes a large vocabulary
    cheap to train. Logits are computed in the compute dtype, softmax and biases in
    float32, or float64 for that dtype policy.

    The tie is kept in a `.keras` file by a functional model that calls the embedding
    before this layer, and by any model whose constructor makes both. It is not kept by
    `keras.models.clone_model`, nor where the embedding is a layer of a functional model
    inside another: there loading raises an error.

    Args:
        embedding: `AdaptiveEmbedding`, which says the sizes and what is tied.
        tie_weights: Boolean. Whether the tables are those of the embedding. Otherwise
            the layer has tables of its own, of the same shapes. Defaults to `True`.
        tie_projections: Tuple of Booleans, one for each bucket. Whether its projection
            is that of the embedding. Without effect where the embedding has none.
            Defaults to `None`: with `tie_weights` all but the first, as in the
            reference, otherwise none.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    The layer's own weights start as those of the embedding do, biases at zero.

    Call arguments:
        hidden: Tensor of shape `(batch, length, output_dim)`, with the `output_dim`
            of the embedding.
        targets: Optional integer tensor `(batch, length)`. With it the outputs are
            those of `loss`.

    Input shape:
        `(batch, length, output_dim)`, or any other rank with that last axis.

    Output shape:
        `(batch, length, vocabulary_size)`, or with targets `(batch, length)`, of dtype
        float32 (float64 for that dtype policy).

    Raises:
        ValueError: If an argument is not as above, or the last axis of the inputs is
            not `output_dim`.

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

    def __init__(self, embedding, tie_weights=True, tie_projections=None, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        if not isinstance(embedding, AdaptiveEmbedding):
            raise ValueError(
                "`embedding` must be an AdaptiveEmbedding layer. Received: "
                f"embedding={embedding} (of type {type(embedding).__name__})."
            )
        self.num_clusters = len(embedding.cutoffs)
        self.tie_weights = check_boolean("tie_weights", tie_weights)
        if tie_projections is None:
            tie_projections = (False,) + (self.tie_weights,) * self.num_clusters
        self.tie_projections = self._checked_ties(tie_projections)
        if not self.tie_weights and not any(self.tie_projections):
            # Only its sizes matter: its weights must not become weights of this layer.
            embedding = AdaptiveEmbedding.from_config(embedding.get_config())
        self.embedding = embedding

    def _checked_ties(self, ties):
        num_buckets = self.num_clusters + 1
        if not isinstance(ties, (list, tuple)) or len(ties) != num_buckets:
            raise ValueError(
                f"`tie_projections` must be a tuple of Booleans, one for each of the "
                f"{num_buckets} buckets. Received: tie_projections={ties}."
            )
        return tuple(
            check_boolean(f"tie_projections[{bucket}]", tie)
            for bucket, tie in enumerate(ties)
        )

    def build(self, hidden_shape, targets_shape=None):
        del targets_shape
        embedding = self.embedding
        if hidden_shape[-1] != embedding.output_dim:
            raise ValueError(
                f"Layer '{self.name}' needs inputs whose last axis is the output_dim="
                f"{embedding.output_dim} of its embedding. Received: inputs of shape "
                f"{tuple(hidden_shape)}"
            )
        if (self.tie_weights or any(self.tie_projections)) and not embedding.built:
            embedding.build((None, None))
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
            self._add(f"bias_{i}", (size,), "zeros")
            for i, (size, _) in enumerate(embedding.table_shapes)
        ]
        if self.num_clusters:
            shape = (self.num_clusters, embedding.embedding_dim)
            self.cluster_weight = self._add(
                "cluster_weight", shape, embedding.embeddings_initializer
            )
            self.cluster_bias = self._add("cluster_bias", shape[:1], "zeros")

    def _add_projection(self, bucket):
        """Every bucket has one of its own, also where one table serves them all."""
        embedding = self.embedding
        if self.tie_projections[bucket] or not embedding.has_projections:
            return None
        _, width = embedding.table_shapes[self._table_of(bucket)]
        return self._add(
            f"projection_{bucket}",
            (width, embedding.output_dim),
            embedding.projection_initializer,
        )

    def _add(self, name, shape, initializer):
        # `loss` is no call, and so has no autocast scope: `call` does without it too.
        return self.add_weight(
            name=name, shape=shape, initializer=fresh(initializer), autocast=False
        )

    def _table_of(self, bucket):
        return 0 if self.embedding.div_val == 1 else bucket

    @property
    def tables(self):
        """List of the tables, the embedding's own if they are tied."""
        return self.embedding.tables if self.tie_weights else self._own_tables

    @property
    def projections(self):
        """List of the projections, one for each bucket, or `None` for each."""
        return [
            self.embedding.projections[self._table_of(i)] if is_tied else own
            for i, (is_tied, own) in enumerate(
                zip(self.tie_projections, self._own_projections, strict=True)
            )
        ]

    def call(self, hidden, targets=None):
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

    def loss(self, hidden, targets):
        """Returns the negative log-likelihood of each target.

        Equal to `-call(hidden)` at the targets, without an array of the size
        `(tokens, vocabulary)`: the head sees all tokens, and a tail only those in its
        cluster. XLA, whose shapes are static, compiles it too, but then each tail
        takes the time of all tokens: train with `jit_compile=False`.

        Args:
            hidden: Tensor of shape `(batch, length, output_dim)`.
            targets: Integer tensor of shape `(batch, length)`.

        Returns:
            Tensor of shape `(batch, length)`, in nats, in the order of the tokens and
            of the dtype of the log-probabilities.
        """
        hidden, targets = ops.convert_to_tensor(hidden), self._checked(hidden, targets)
        if not self.built:
            self.build(hidden.shape)
        states = ops.reshape(hidden, (-1, self.embedding.output_dim))  # (tokens, d)
        tokens = ops.reshape(targets, (-1,))  # (tokens,)
        losses = _cross_entropy(self._head_targets(tokens), self._logits(states, 0))
        for i in range(1, self.num_clusters + 1):
            start, end = self.embedding.bucket_bounds[i]
            is_in_cluster = ops.logical_and(tokens >= start, tokens < end)
            # How many tokens there are depends on their values: no op of Keras gathers
            # them, but a mask would have every tail score every token.
            where = tf.where(is_in_cluster)  # (tokens of the cluster, 1)
            tail = _cross_entropy(
                tf.gather_nd(tokens, where) - start,
                self._logits(tf.gather_nd(states, where), i),
            )
            losses = tf.tensor_scatter_nd_add(losses, where, tail)
        return ops.reshape(losses, ops.shape(targets))  # (batch, length)

    def _checked(self, hidden, targets):
        targets = check_token_ids(targets, self.embedding.vocabulary_size)
        if not targets.shape.is_compatible_with(hidden.shape[:-1]):
            raise ValueError(
                f"Layer '{self.name}' needs one target for each hidden state. "
                f"Received: hidden of shape {tuple(hidden.shape)}, targets of shape "
                f"{tuple(targets.shape)}"
            )
        return targets

    def _head_targets(self, tokens):
        """Replaces the tokens of a cluster by the column of the cluster."""
        targets = tokens
        for i, (start, _) in enumerate(self.embedding.bucket_bounds[1:], start=1):
            column = self.embedding.bucket_bounds[0][1] + self.num_clusters - i
            targets = ops.where(
                tokens >= start, ops.cast(column, tokens.dtype), targets
            )
        return targets

    def _logits(self, hidden, bucket):
        """Scores of the tokens of a bucket, and of the clusters for bucket 0."""
        table, bias = self._table_and_bias(bucket)
        hidden = ops.cast(hidden, self.compute_dtype)
        projection = self.projections[bucket]
        if projection is not None:
            hidden = _matmul_transposed(hidden, projection)  # (..., width)
        logits = _matmul_transposed(hidden, table)  # (..., columns)
        dtype = self._wide_dtype
        return ops.cast(logits, dtype) + ops.cast(bias, dtype)

    @property
    def _wide_dtype(self):
        return keras.backend.result_type(self.compute_dtype, "float32")

    def _table_and_bias(self, bucket):
        index = self._table_of(bucket)
        table, bias = self.tables[index], self.biases[index]
        if self.embedding.div_val == 1:
            start, end = self.embedding.bucket_bounds[bucket]
            table, bias = table[start:end], bias[start:end]
        if bucket == 0 and self.num_clusters:
            table = ops.concatenate([table, self.cluster_weight], axis=0)
            bias = ops.concatenate([bias, self.cluster_bias], axis=0)
        return table, bias

    def compute_mask(self, inputs, previous_mask=None):
        # Tokens that do not count have a sample weight of zero already.
        return None

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.embedding.vocabulary_size)

    def compute_output_spec(self, hidden, targets=None):
        shape = self.compute_output_shape(hidden.shape)
        if targets is not None:
            shape = shape[:-1]
        return keras.KerasTensor(shape, dtype=self._wide_dtype)

    def get_config(self):
        # While it writes and reads a file, Keras gives a layer that it meets twice one
        # identity: the embedding of a model comes back as one layer.
        config = {
            "embedding": keras.saving.serialize_keras_object(self.embedding),
            "tie_weights": self.tie_weights,
            "tie_projections": list(self.tie_projections),
        }
        return {**super().get_config(), **config}

    @classmethod
    def from_config(cls, config):
        embedding = keras.saving.deserialize_keras_object(config["embedding"])
        return cls(**{**config, "embedding": embedding})


def _matmul_transposed(inputs, matrix):
    return ops.matmul(inputs, ops.transpose(ops.cast(matrix, inputs.dtype)))


def _cross_entropy(targets, logits):
    return ops.sparse_categorical_crossentropy(targets, logits, from_logits=True)
