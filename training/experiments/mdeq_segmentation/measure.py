"""Predictions of a segmenter, and their mean intersection over union."""

import numpy as np

from ...data.segmentation import IGNORED
from .windows import predict_in_windows


class BudgetPredictor:
    """Predicts the classes of pixels with a budget of cell evaluations.

    Args:
        opened: `EncoderSolverHead` of a segmenter, or an `ExportedModel`.
        window: Tuple `(height, width)`. Size of the windows. Defaults to `None`, whole
            images.
        stride: Tuple `(down, right)`. Distance of the windows. Defaults to `None`, the
            size of the window.
    """

    def __init__(self, opened, window=None, stride=None):
        self.window = window
        self.stride = stride or window
        self._answer = opened.answer()

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


class SegmentationScores:
    """Scores of predicted classes, from the confusion matrix of all images.

    `score` and `summarize` are arguments of `measure_at_budgets`.

    Args:
        class_names: Tuple of strings. Names of the classes.
    """

    def __init__(self, class_names):
        self.class_names = class_names

    def score(self, predicted, labels):
        """Returns the confusion matrix of a batch."""
        zeros = np.zeros((len(self.class_names), len(self.class_names)), "int64")
        return {"confusion": confusion_matrix(np.asarray(labels), predicted, zeros)}

    def summarize(self, scores):
        """Returns `mean_iou`, `class_iou` by class name, and `pixel_accuracy`."""
        return _scores(sum(one["confusion"] for one in scores), self.class_names)


def confusion_matrix(labels, predicted, like):
    """Counts the pixels of each class (row) by their predicted class (column).

    Args:
        labels: Integer array. Pixels with label 255 are ignored.
        predicted: Integer array of the same shape. Predicted classes.
        like: Matrix with the shape of the result.
    """
    is_valid = labels != IGNORED
    pairs = labels[is_valid] * len(like) + predicted[is_valid]
    return np.bincount(pairs, minlength=like.size).reshape(like.shape)


def class_iou(confusion):
    """Returns the intersection over union of each class, NaN for classes that neither
    labels nor predictions contain."""
    intersection = np.diag(confusion)
    union = confusion.sum(axis=0) + confusion.sum(axis=1) - intersection
    return np.where(union > 0, intersection / np.maximum(union, 1), np.nan)


def _scores(confusion, class_names):
    scores = class_iou(confusion)
    return {
        "mean_iou": float(np.nanmean(scores)),
        "class_iou": {
            name: None if np.isnan(score) else float(score)
            for name, score in zip(class_names, scores, strict=True)
        },
        "pixel_accuracy": float(np.trace(confusion) / confusion.sum()),
    }
