"""Predictions of a segmenter, their intersection over union, and their pictures."""

import numpy as np
import tensorflow as tf

from ...data.segmentation import IGNORED
from ...files.atomic_file import replacing


class BudgetPredictor:
    """Predicts the classes of pixels with a budget of cell evaluations.

    Args:
        answer: Function from inputs and a budget to logits and statistics; see
            `EncoderSolverHead.answer`.
        window: Tuple `(height, width)`. Size of the windows. Defaults to `None`, whole
            images.
        stride: Tuple `(down, right)`. Distance of the windows. Defaults to `None`, the
            size of the window.
    """

    def __init__(self, answer, window=None, stride=None):
        self.window = window
        self.stride = stride or window
        self._answer = answer

    def predict(self, images, budget):
        """Predicts the classes of pixels of preprocessed images.

        Args:
            images: Tensor `(batch, height, width, channels)`.
            budget: Positive integer. Number of evaluations.

        Returns:
            Integer array `(batch, height, width)` of classes, and a dict of
            `evaluations`, `residual` and `converged`, arrays with one entry per solve.
        """
        solves = []

        def logits(window):
            values, statistics = self._answer(window, budget)
            solves.append(statistics)
            return values

        size = self.window or images.shape[1:3]
        predicted = predict_in_windows(logits, images, size, self.stride or size)
        statistics = {
            name: np.concatenate([np.asarray(solve[name]) for solve in solves])
            for name in solves[0]
        }
        return predicted.argmax(axis=-1), statistics


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


def confusion_matrix(labels, predicted, num_classes):
    """Counts the pixels of each class (row) by their predicted class (column).

    Args:
        labels: Integer array. Pixels with label 255 are ignored.
        predicted: Integer array of the same shape. Predicted classes.
        num_classes: Positive integer.
    """
    is_valid = labels != IGNORED
    pairs = labels[is_valid] * num_classes + predicted[is_valid]
    counts = np.bincount(pairs, minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes)


def class_iou(confusion):
    """Returns the intersection over union of each class, NaN for classes that neither
    labels nor predictions contain."""
    intersection = np.diag(confusion)
    union = confusion.sum(axis=0) + confusion.sum(axis=1) - intersection
    return np.where(union > 0, intersection / np.maximum(union, 1), np.nan)


def segmentation_scores(confusion, class_names):
    """Returns `mean_iou`, `class_iou` by class name, and `pixel_accuracy`."""
    scores = class_iou(confusion)
    return {
        "mean_iou": float(np.nanmean(scores)),
        "class_iou": {
            name: None if np.isnan(score) else float(score)
            for name, score in zip(class_names, scores, strict=True)
        },
        "pixel_accuracy": float(np.trace(confusion) / confusion.sum()),
    }


def write_overlay(path, image, labels, palette):
    """Writes an image, blended equally with the colors of its classes, as PNG.

    Replaces the file atomically. Pixels with label 255 do not change.

    Args:
        path: `pathlib.Path` of the PNG file, in an existing folder.
        image: Array `(height, width, 3)`. Pixels from 0 to 255.
        labels: Integer array `(height, width)`. Classes of the pixels.
        palette: Sequence with one `(red, green, blue)` per class.
    """
    encoded = tf.io.encode_png(blend(image, labels, palette)).numpy()
    with replacing(path) as temporary:
        temporary.write_bytes(encoded)


def blend(image, labels, palette):
    """Returns the uint8 pixels of `write_overlay`."""
    image, labels = np.asarray(image, "float32"), np.asarray(labels)
    is_ignored = labels == IGNORED
    colors = np.asarray(palette, "float32")[np.where(is_ignored, 0, labels)]
    mixed = np.where(is_ignored[..., None], image, (image + colors) / 2)
    return np.clip(np.rint(mixed), 0, 255).astype("uint8")
