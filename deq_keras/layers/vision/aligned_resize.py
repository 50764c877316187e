"""Bilinear resizing with aligned corners."""

from keras import ops


def resize_aligned(feature_map, height, width):
    """Resizes feature maps bilinearly with aligned corners.

    The first and last rows and columns equal the input's, as with PyTorch's
    `align_corners=True`; TensorFlow and Keras only resize with half-pixel centers.

    Args:
        feature_map: Tensor of shape `(batch, old_height, old_width, channels)`.
        height: Integer or scalar tensor. New height.
        width: Integer or scalar tensor. New width.

    Returns:
        Tensor of shape `(batch, height, width, channels)`.
    """
    _, old_height, old_width, _ = ops.shape(feature_map)
    dtype = feature_map.dtype
    rows = _weights(height, old_height, dtype)
    columns = _weights(width, old_width, dtype)
    feature_map = ops.einsum("hi,biwc->bhwc", rows, feature_map)
    return ops.einsum("wj,bhjc->bhwc", columns, feature_map)


def _weights(size, old_size, dtype):
    """Returns the matrix `(size, old_size)` of the weights of old positions."""
    # Integers avoid rounding: |i (old - 1) - j (new - 1)|.
    new_steps = ops.maximum(size - 1, 1)
    centers = ops.expand_dims(ops.arange(size) * (old_size - 1), 1)
    distance = ops.abs(centers - ops.arange(old_size) * new_steps)
    weights = ops.maximum(new_steps - distance, 0)
    exact = "float64" if dtype == "float64" else "float32"
    return ops.cast(ops.cast(weights, exact) / ops.cast(new_steps, exact), dtype)
