"""Memory-efficient attention with relative positions."""

import functools
from typing import Any, NamedTuple

import tensorflow as tf
from keras import ops

from deq_keras.core.custom_gradient import custom_gradient
from deq_keras.core.structure import wide_dtype


def attend(
    content_queries: Any,
    position_queries: Any,
    keys: Any,
    positions: Any,
    values: Any,
    mask: Any,
    dropout: Any = None,
) -> Any:
    """Computes attention with relative positions.

    Implements its first and second derivative; Jacobian penalties use the second. Both
    store a single array of the size of the scores, the attention weights. TensorFlow's
    gradients would store every such array throughout the loop of an adjoint solve.

    Args:
        content_queries: Tensor `(batch, heads, length, head_dim)`, scaled.
        position_queries: Tensor of the same shape, scaled.
        keys: Tensor `(batch, heads, num_keys, head_dim)`.
        positions: Tensor `(heads, head_dim, num_keys + 1)`. Keys of the distances from
            `num_keys` down to 0. No query sees the first one.
        values: Tensor with the shape of the keys.
        mask: Tensor that is added to the scores `(batch, heads, length, num_keys)`.
        dropout: Optional tensor. Factor of the attention weights.

    Returns:
        Tensor with the shape of the queries.
    """
    mix = custom_gradient(lambda *arguments: _mix(mask, dropout, *arguments))
    return mix(content_queries, position_queries, keys, positions, values)


def _mix(mask: Any, dropout: Any, *arguments: Any) -> Any:
    """Returns the result of `attend` and the function of its gradient."""
    *factors, values = arguments
    scores = _scores(*factors) + mask  # (B, H, L, K)
    wide = wide_dtype(scores.dtype)
    weights = tf.cast(tf.nn.softmax(tf.cast(scores, wide)), scores.dtype)
    forward = _Forward(weights, dropout, wide)
    mixed = tf.matmul(forward.drop(weights), values)  # (B, H, L, head_dim)
    gradients = custom_gradient(
        lambda *arguments: _gradients(forward, mixed, *arguments)
    )

    def gradient(upstream: Any) -> Any:
        on_values, *on_factors = gradients(upstream, values, *factors)
        return *on_factors, on_values

    return mixed, gradient


def _gradients(
    forward: Any, mixed: Any, upstream: Any, values: Any, *factors: Any
) -> Any:
    """Returns the gradients of the values and of the factors of the scores, and the
    function that differentiates these gradients."""
    on_weights = forward.on_weights(upstream, values)
    # The mean of on_weights under the attention weights, without forming their product.
    mean = _dot(upstream, mixed, forward.wide)
    on_scores = forward.softmax_gradient(on_weights, mean)
    on_values = _transposed_product(forward.drop(forward.weights), upstream)
    second_gradients = functools.partial(
        _second_gradients, forward, mean, upstream, values, factors
    )
    return (on_values, *_score_gradients(on_scores, *factors)), second_gradients


# The second derivative, in the order that keeps the fewest arrays `(B, H, L, K)`, the
# size of the scores, in memory:
# 1. Carry the incoming gradients forward to the scores (`_scores_along`), and through
#    the softmax to the weights: yields the gradients of `upstream` and `values`.
# 2. Collect in `second` what reaches the weights from both factors of w (a - m).
# 3. Carry the products with the incoming gradients back to the factors of the scores.
# 4. Carry `second` back through the softmax to the same factors, and add both.
def _second_gradients(
    forward: Any,
    mean: Any,
    upstream: Any,
    values: Any,
    factors: Any,
    at_values: Any,
    *at_factors: Any,
) -> Any:
    """Backpropagates through `_gradients`, from its outputs to its inputs.

    on_scores = w (a - m), with the weights w, a = on_weights and m = sum(w a). For a
    gradient x at on_scores, the gradient at a is w (x - sum(w x)), and the gradient at
    w is x (a - m) - sum(w x) a. Control dependencies serialize the arrays of this size,
    so that few are in memory at once.
    """
    weights, wide = forward.weights, forward.wide
    at_scores = _scores_along(factors, at_factors)
    at_mean = _dot(weights, at_scores, wide)
    at_weights = forward.drop(forward.softmax_gradient(at_scores, at_mean))
    on_values = _transposed_product(at_weights, upstream)
    on_upstream = tf.matmul(at_weights, values)
    on_upstream += tf.matmul(forward.drop(weights), at_values)
    with tf.control_dependencies([on_values, on_upstream]):
        on_weights = forward.on_weights(upstream, values)
        at_scores = tf.cast(at_scores, wide)
        second = (at_scores - at_mean) * tf.cast(on_weights, wide)
        second -= at_scores * mean
    with tf.control_dependencies([second]):
        on_scores = forward.softmax_gradient(on_weights, mean)
    through_products = _score_gradients(on_scores, *at_factors)
    with tf.control_dependencies(through_products):
        second += tf.cast(forward.on_weights(upstream, at_values), wide)
    on_scores = forward.softmax_gradient(second, _dot(weights, second, wide))
    through_weights = _score_gradients(on_scores, *factors)
    on_factors = [tf.add(*pair) for pair in zip(through_products, through_weights)]
    # Makes consumers of the gradient wait for the complete computation.
    with tf.control_dependencies(on_factors):
        on_upstream = tf.identity(on_upstream)
    return on_upstream, on_values, *on_factors


class _Forward(NamedTuple):
    """Tensors of the forward pass that the gradients use as constants.

    Attributes:
        weights: Tensor `(batch, heads, length, num_keys)`. Attention weights.
        dropout: Optional tensor. Factor of the attention weights.
        wide: String. Dtype of sums, at least float32.
    """

    weights: tf.Tensor
    dropout: tf.Tensor | None
    wide: str

    def drop(self, weights: Any) -> Any:
        return weights if self.dropout is None else weights * self.dropout

    def on_weights(self, upstream: Any, values: Any) -> Any:
        """Returns the gradient of the weights."""
        return self.drop(tf.matmul(upstream, values, transpose_b=True))

    def softmax_gradient(self, on_weights: Any, mean: Any) -> Any:
        """Backpropagates through the softmax, which is a symmetric linear map.

        `mean` is the mean of `on_weights` under the attention weights.
        """
        weights = tf.cast(self.weights, self.wide)
        on_scores = weights * (tf.cast(on_weights, self.wide) - mean)
        return tf.cast(on_scores, self.weights.dtype)


def _scores(
    content_queries: Any, position_queries: Any, keys: Any, positions: Any
) -> Any:
    position = _by_key(tf.matmul(position_queries, positions))
    with tf.control_dependencies([position]):
        content = tf.matmul(content_queries, keys, transpose_b=True)
    return content + position


def _score_gradients(on_scores: Any, *factors: Any) -> Any:
    content_queries, position_queries, keys, positions = factors
    by_distance = _by_distance(on_scores)
    on_positions = tf.matmul(position_queries, by_distance, transpose_a=True)
    return (
        tf.matmul(on_scores, keys),
        tf.matmul(by_distance, positions, transpose_b=True),
        _transposed_product(on_scores, content_queries),
        ops.sum(on_positions, axis=0),
    )


def _scores_along(factors: Any, directions: Any) -> Any:
    """Returns the derivative of `_scores`: one product instead of the sum of two."""
    content_queries, position_queries, keys, positions = zip(factors, directions)
    return _scores(
        ops.concatenate(content_queries, axis=-1),
        ops.concatenate(position_queries, axis=-1),
        ops.concatenate(keys[::-1], axis=-1),
        ops.concatenate(positions[::-1], axis=-2),
    )


def _dot(left: Any, right: Any, dtype: Any) -> Any:
    return ops.sum(ops.cast(left, dtype) * ops.cast(right, dtype), -1, keepdims=True)


def _transposed_product(left: Any, right: Any) -> Any:
    """Returns left^T right without transposing `left`, which may be large."""
    product = ops.matmul(ops.swapaxes(right, -1, -2), left)
    return ops.swapaxes(product, -1, -2)


def _by_key(scores: Any) -> Any:
    """Moves column c of row i, the score at distance K - c, to its key c - (L - i).

    Entries that wrap around are masked later.
    """
    # Row i must shift by L - i columns to the left. Read as rows of L instead of K + 1
    # entries, the array without its first L entries has this order, without a gather.
    batch, heads, length, columns = ops.shape(scores)  # (B, H, L, K + 1)
    rows = ops.reshape(scores, (batch, heads, columns, length))[:, :, 1:]
    return ops.reshape(rows, (batch, heads, length, columns - 1))


def _by_distance(scores: Any) -> Any:
    """Applies the transpose of `_by_key`."""
    batch, heads, length, keys = ops.shape(scores)  # (B, H, L, K)
    rows = ops.reshape(scores, (batch, heads, keys, length))
    rows = ops.pad(rows, ((0, 0), (0, 0), (1, 0), (0, 0)))
    return ops.reshape(rows, (batch, heads, length, keys + 1))
