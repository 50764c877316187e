"""Attention with relative positions, in little memory."""

import keras
import tensorflow as tf
from keras import ops


def attend(
    content_queries, position_queries, keys, positions, values, mask, dropout=None
):
    """Mixes the values with the weights of the attention.

    The backward pass is written out, of operations that can be differentiated again, to
    keep one array of the size of the scores: the weights. TensorFlow's would hold all
    of them, for their shapes, throughout the loop of an adjoint.

    Args:
        content_queries: Tensor `(batch, heads, length, head_dim)`, scaled.
        position_queries: Tensor of the same shape, scaled.
        keys: Tensor `(batch, heads, num_keys, head_dim)`.
        positions: Tensor `(heads, head_dim, num_keys + 1)`: keys of the distances from
            `num_keys` down to 0, the first of which no query sees.
        values: Tensor of the shape of the keys.
        mask: Tensor that is added to the scores `(batch, heads, length, num_keys)`.
        dropout: Optional tensor that the weights are multiplied by.

    Returns:
        Tensor of the shape of the queries.
    """

    @ops.custom_gradient
    def mix(content_queries, position_queries, keys, positions, values):
        content = ops.matmul(content_queries, ops.swapaxes(keys, -1, -2))
        position = _by_key(ops.matmul(position_queries, positions))
        scores = content + position + mask  # (B, H, L, K)
        dtype = keras.backend.result_type(scores.dtype, "float32")
        weights = ops.cast(ops.softmax(ops.cast(scores, dtype)), scores.dtype)
        kept = weights if dropout is None else weights * dropout
        mixed = ops.matmul(kept, values)  # (B, H, L, head_dim)

        def gradient(upstream):
            on_weights = ops.matmul(upstream, ops.swapaxes(values, -1, -2))
            if dropout is not None:
                on_weights = on_weights * dropout
            # The sum over keys of on_weights * weights, without that array.
            mean = ops.sum(
                ops.cast(upstream, dtype) * ops.cast(mixed, dtype), -1, keepdims=True
            )
            on_scores = ops.cast(weights, dtype) * (ops.cast(on_weights, dtype) - mean)
            on_scores = ops.cast(on_scores, scores.dtype)
            on_queries_and_keys = _score_products(
                on_scores, content_queries, keys, positions
            )
            on_positions = ops.matmul(
                ops.swapaxes(position_queries, -1, -2), _by_distance(on_scores)
            )
            return (
                *on_queries_and_keys,
                ops.sum(on_positions, axis=0),
                _transposed_product(kept, upstream),
            )

        return mixed, gradient

    return mix(content_queries, position_queries, keys, positions, values)


@ops.custom_gradient
def _score_products(on_scores, content_queries, keys, positions):
    """Returns the gradients of both queries and the keys, given that of the scores.

    Differentiated in turn by the penalties of the Jacobian, which is where the memory
    peaks.
    """
    products = (
        ops.matmul(on_scores, keys),
        ops.matmul(_by_distance(on_scores), ops.swapaxes(positions, -1, -2)),
        _transposed_product(on_scores, content_queries),
    )

    def gradient(on_content, on_position, on_keys):
        # One product instead of the sum of two.
        left = ops.concatenate([on_content, content_queries], axis=-1)
        right = ops.concatenate([keys, on_keys], axis=-1)
        content = ops.matmul(left, ops.swapaxes(right, -1, -2))
        position = _by_key(ops.matmul(on_position, positions))
        # Shifted again, and only now: not kept since the products.
        with tf.control_dependencies([on_position]):
            by_distance = _by_distance(on_scores)
        on_positions = ops.matmul(ops.swapaxes(on_position, -1, -2), by_distance)
        return (
            content + position,
            ops.matmul(on_scores, on_keys),
            _transposed_product(on_scores, on_content),
            ops.sum(on_positions, axis=0),
        )

    return products, gradient


def _transposed_product(left, right):
    """Returns left^T right, for a left too large to transpose."""
    product = ops.matmul(ops.swapaxes(right, -1, -2), left)
    return ops.swapaxes(product, -1, -2)


def _by_key(scores):
    """Moves column c of row i, which belongs to the distance K - c, to the key that
    far before the query: c - (L - i). What wraps around is masked later."""
    batch, heads, length, columns = ops.shape(scores)  # (B, H, L, K + 1)
    rows = ops.reshape(scores, (batch, heads, columns, length))[:, :, 1:]
    return ops.reshape(rows, (batch, heads, length, columns - 1))


def _by_distance(scores):
    """The transpose of `_by_key`."""
    batch, heads, length, keys = ops.shape(scores)  # (B, H, L, K)
    rows = ops.reshape(scores, (batch, heads, keys, length))
    rows = ops.pad(rows, ((0, 0), (0, 0), (1, 0), (0, 0)))
    return ops.reshape(rows, (batch, heads, length, keys + 1))
