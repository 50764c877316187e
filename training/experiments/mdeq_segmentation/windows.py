"""Predicts large images window by window."""

import numpy as np


def predict_in_windows(predict, images, size, stride):
    """Averages, for each pixel, the logits of all windows that contain it.

    Windows are `stride` apart, starting in the upper left corner. The last windows of a
    row and of a column end with the image.

    Args:
        predict: Function from a window `(batch, *size, channels)` to its logits
            `(batch, *size, num_classes)`.
        images: Tensor `(batch, height, width, channels)`.
        size: Tuple `(height, width)`. Size of the windows, at most the size of the
            images.
        stride: Tuple `(down, right)`. Distance of adjacent windows.

    Returns:
        Array `(batch, height, width, num_classes)`.
    """
    _, height, width, _ = images.shape
    total = None
    count = np.zeros((height, width, 1), "float32")
    for rows in _spans(height, size[0], stride[0]):
        for columns in _spans(width, size[1], stride[1]):
            logits = np.asarray(predict(images[:, rows, columns]))
            if total is None:
                shape = (logits.shape[0], height, width, logits.shape[-1])
                total = np.zeros(shape, logits.dtype)
            total[:, rows, columns] += logits
            count[rows, columns] += 1
    return total / count


def _spans(length, size, stride):
    starts = [*range(0, length - size, stride), length - size]
    return [slice(start, start + size) for start in starts]
