"""Token embedding with fewer dimensions for rarer tokens."""

import math
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from deq_keras.core.checks import (
    check_count,
    check_counts,
    check_positive,
    check_rate,
    check_seed,
)
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.layers.kernel_initializer import fresh
from deq_keras.layers.variational_dropout import VariationalDropout


@keras.saving.register_keras_serializable(package="deq_keras")
class AdaptiveEmbedding(keras.layers.Layer):
    """Embeds tokens, with fewer dimensions for rarer tokens.

    The vocabulary, sorted by decreasing frequency, is split into buckets. Bucket i has
    a table with `embedding_dim // div_val**i` columns, and a projection to the size of
    the model:

    ```
    outputs[token] = tables[i][token - start_i] @ projections[i] * scale
    ```

    where i is the bucket of the token and start_i the first id of the bucket. With
    `div_val=1`, all buckets share one table, which is projected only if `embedding_dim`
    differs from `output_dim`. Most words of a large vocabulary are rare, so `div_val=4`
    saves most of the parameters of a word-level language model.

    All shapes are static, so the layer compiles under XLA: every bucket looks up every
    token and masks tokens of other buckets.

    Args:
        vocabulary_size: Positive integer. Number of tokens. Ids are in
            `[0, vocabulary_size)`, where 0 is the most frequent token.
        embedding_dim: Positive integer. Row size of the first bucket.
        output_dim: Positive integer. Size of the outputs. Defaults to `None`, which
            uses `embedding_dim`.
        cutoffs: Tuple of strictly increasing integers in `(0, vocabulary_size)`. First
            id of each bucket except the first. Defaults to `()`, one bucket.
        div_val: Positive integer. Factor by which the row size shrinks from one bucket
            to the next, rounded down. Defaults to `1`.
        embeddings_initializer: Initializer of the tables. Defaults to `None`, a
            normal distribution with standard deviation 0.01, as in the reference, the
            authors' PyTorch code (locuslab/deq).
        projection_initializer: Initializer of the projections. Defaults to `None`,
            the same distribution.
        scale: Positive float. Factor of the outputs. Defaults to `None`, which uses
            `sqrt(output_dim)`, as in Transformers.
        dropout_rate: Float in `[0, 1)`. Rate of token dropout in training, which drops
            all occurrences of a token in a batch. Defaults to `0.0`.
        seed: Integer. Seed of the dropout. Defaults to `None`, a random seed.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        token_ids: Integer tensor. An id out of range raises
            `tf.errors.InvalidArgumentError`. XLA does not support assertions: there,
            the id is embedded like an arbitrary token.

    Input shape:
        `(batch, length)`, or any other shape.

    Output shape:
        `(batch, length, output_dim)`: one more axis than the ids.

    Attributes:
        bucket_bounds: List of pairs `(start, end)`, one per bucket, which holds the ids
            from `start` to `end - 1`.
        tables: List of variables `(end - start, embedding_dim // div_val**i)`,
            available once the layer is built. With `div_val=1`, a single variable
            `(vocabulary_size, embedding_dim)`.
        projections: List of variables `(columns of the table, output_dim)` or `None`,
            one per table.

    Raises:
        ValueError: If an argument is out of range, a bucket would have zero
            dimensions, or token ids are not integers.

    Example:

    >>> layer = AdaptiveEmbedding(1000, 16, cutoffs=(100, 400), div_val=4)
    >>> tuple(layer(np.array([[1, 2, 3], [150, 500, 999]])).shape)
    (2, 3, 16)
    >>> [tuple(table.shape) for table in layer.tables]
    [(100, 16), (300, 4), (600, 1)]

    Reference:
        [Baevski and Auli, 2019](https://arxiv.org/abs/1809.10853), adaptive input
        representations.
    """

    def __init__(
        self,
        vocabulary_size: int,
        embedding_dim: int,
        output_dim: int | None = None,
        cutoffs: tuple[int, ...] = (),
        div_val: int = 1,
        embeddings_initializer: Any = None,
        projection_initializer: Any = None,
        scale: float | None = None,
        dropout_rate: float = 0.0,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        output_dim = embedding_dim if output_dim is None else output_dim
        self.vocabulary_size = check_count("vocabulary_size", vocabulary_size)
        self.embedding_dim = check_count("embedding_dim", embedding_dim)
        self.output_dim = check_count("output_dim", output_dim)
        self.div_val = check_count("div_val", div_val)
        self.cutoffs = check_counts("cutoffs", cutoffs, allow_empty=True)
        bounds = (*self.cutoffs, self.vocabulary_size)
        if any(start >= end for start, end in zip(bounds, bounds[1:])):
            raise ValueError(
                "`cutoffs` must be strictly increasing and less than vocabulary_size="
                f"{self.vocabulary_size}. Received: cutoffs={self.cutoffs}."
            )
        if self.embedding_dim // self.div_val ** len(self.cutoffs) < 1:
            raise ValueError(
                "`div_val` leaves the last bucket without dimensions: "
                "`embedding_dim` must be at least `div_val ** len(cutoffs)`. "
                f"Received: div_val={self.div_val}, "
                f"embedding_dim={self.embedding_dim}, cutoffs={self.cutoffs}."
            )
        self.embeddings_initializer = keras.initializers.get(
            embeddings_initializer or keras.initializers.RandomNormal(stddev=0.01)
        )
        self.projection_initializer = keras.initializers.get(
            projection_initializer or keras.initializers.RandomNormal(stddev=0.01)
        )
        self.scale = None if scale is None else check_positive("scale", scale)
        self.dropout_rate = check_rate("dropout_rate", dropout_rate)
        self.seed = check_seed("seed", seed)
        self.dropout = None
        if self.dropout_rate > 0:
            self.dropout = VariationalDropout(
                self.dropout_rate, seed=self.seed, dtype=self.dtype_policy
            )
        self.bucket_bounds = list(zip((0, *self.cutoffs), bounds, strict=True))

    @property
    def table_shapes(self) -> list[tuple[int, int]]:
        """Returns the list of table shapes."""
        if self.div_val == 1:
            return [(self.vocabulary_size, self.embedding_dim)]
        return [
            (end - start, self.embedding_dim // self.div_val**i)
            for i, (start, end) in enumerate(self.bucket_bounds)
        ]

    @property
    def has_projections(self) -> bool:
        """Returns whether rows are projected to the outputs."""
        return self.div_val > 1 or self.embedding_dim != self.output_dim

    def build(self, input_shape: Any = None) -> None:
        # Rows are cast after the lookup: autocast would cast the whole tables.
        self.tables = [
            self.add_weight(
                name=f"table_{i}",
                shape=shape,
                initializer=fresh(self.embeddings_initializer),
                autocast=False,
            )
            for i, shape in enumerate(self.table_shapes)
        ]
        self.projections = [
            self.add_weight(
                name=f"projection_{i}",
                shape=(width, self.output_dim),
                initializer=fresh(self.projection_initializer),
                autocast=False,
            )
            if self.has_projections
            else None
            for i, (_, width) in enumerate(self.table_shapes)
        ]

    def call(self, token_ids: Any, training: bool = False) -> Any:
        token_ids = check_token_ids(token_ids, self.vocabulary_size)
        outputs = sum(
            self._embed(token_ids, i, training) for i in range(len(self.tables))
        )
        outputs = outputs * (self.scale or math.sqrt(self.output_dim))
        if self.dropout is None or not training:
            return outputs
        mask = self.dropout.sample_mask((self.vocabulary_size, 1), training=True)
        return outputs * ops.take(mask, token_ids, axis=0)

    def _embed(self, token_ids: Any, index: int, training: bool) -> Any:
        """Embeds the tokens of one table, and all other tokens as zeros."""
        size, _ = self.table_shapes[index]
        rows_of_ids = token_ids - self.bucket_bounds[index][0]
        is_in_table = ops.logical_and(rows_of_ids >= 0, rows_of_ids < size)
        # Avoids `clip`: LiteRT turns a clip to [0, 6] into ReLU6, which needs floats.
        rows = ops.where(is_in_table, rows_of_ids, 0)
        table = self.tables[index]
        if training:  # Exports contain no custom gradient.
            table = _with_dense_gradient(tf.convert_to_tensor(table))
        rows = ops.take(table, rows, axis=0)
        if len(self.tables) > 1:
            rows = ops.where(ops.expand_dims(is_in_table, -1), rows, 0)
        rows = ops.cast(rows, self.compute_dtype)  # (batch, length, width)
        projection = self.projections[index]
        if projection is None:
            return rows
        return ops.matmul(rows, ops.cast(projection, self.compute_dtype))

    def compute_output_shape(self, input_shape: Any) -> Any:
        return (*input_shape, self.output_dim)

    def compute_output_spec(self, token_ids: Any, training: bool = False) -> Any:
        check_token_dtype(token_ids.dtype)
        shape = self.compute_output_shape(token_ids.shape)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def get_config(self) -> Config:
        return {**super().get_config(), **arguments_of(self, AdaptiveEmbedding)}


def check_token_ids(token_ids: Any, vocabulary_size: int) -> Any:
    """Checks that token ids are integers in the range of a vocabulary.

    Eager execution checks the range immediately, a graph at each run. XLA does not
    compile assertions, so `jit_compile=True` only checks the dtype.

    Args:
        token_ids: Integer tensor or array of any shape.
        vocabulary_size: Positive integer. Ids are in `[0, vocabulary_size)`.

    Returns:
        The ids as a tensor of dtype `int32` or `int64`.

    Raises:
        ValueError: If the ids are not integers.
        tf.errors.InvalidArgumentError: If an id is out of range.

    Example:

    >>> check_token_ids([[0, 4], [2, 1]], vocabulary_size=5).dtype
    tf.int32
    """
    token_ids = ops.convert_to_tensor(token_ids)
    # A narrow dtype might not represent the vocabulary size.
    if check_token_dtype(token_ids.dtype) != "int32":
        token_ids = ops.cast(token_ids, "int64")
    message = (
        f"Token ids must be in the range [0, {vocabulary_size}), the size of the "
        "vocabulary."
    )
    checks = [
        tf.debugging.assert_non_negative(token_ids, message=message),
        tf.debugging.assert_less(
            token_ids, tf.cast(vocabulary_size, token_ids.dtype), message=message
        ),
    ]
    with tf.control_dependencies(checks):
        return tf.identity(token_ids)


def check_token_dtype(dtype: Any) -> str:
    """Returns the name of an integer dtype. Raises `ValueError` for other dtypes."""
    dtype = keras.backend.standardize_dtype(dtype)
    if "int" not in dtype:
        raise ValueError(
            "Token ids must be integers. Pass arrays of an integer dtype and give "
            f"`keras.Input` the argument `dtype='int32'`. Received: dtype={dtype}"
        )
    return dtype


@tf.custom_gradient
def _with_dense_gradient(table: Any) -> Any:
    """Returns a table whose gradient adds the rows of a token that occurs repeatedly.

    Keras' optimizers square each row of `IndexedSlices` apart, so that Adam would take
    larger steps for frequent tokens, and `clip_norm` would see another norm.
    """
    return tf.identity(table), tf.convert_to_tensor
