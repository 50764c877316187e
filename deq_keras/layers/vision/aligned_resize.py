"""Bilinear resizing whose corners stay where they are."""

from keras import ops


def resize_aligned(feature_map, height, width):
    """Returns feature maps of another size, bilinear, with the corners aligned.

    The first and last rows and columns are those of the input, as with PyTorch's
    `align_corners=True`; TensorFlow and Keras only resize with half-pixel centers.

    Args:
        feature_map: Tensor of shape `(batch, old_height, old_width, channels)`.
        height: Integer or scalar tensor.
        width: Integer or scalar tensor.

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
    # In float32, the positions of large maps would be off by 1e-4.
    step = ops.cast(old_size - 1, "float64") / ops.cast(
        ops.maximum(size - 1, 1), "float64"
    )
    centers = ops.cast(ops.arange(size), "float64") * step
    positions = ops.cast(ops.arange(old_size), "float64")
    distance = ops.abs(ops.expand_dims(centers, 1) - positions)
    return ops.cast(ops.relu(1 - distance), dtype)
