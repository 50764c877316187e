"""Predictions of a segmenter, and their mean intersection over union."""

import numpy as np

from ...data.segmentation import IGNORED
from .windows import predict_in_windows


class BudgetPredictor:
    """Predicts the classes of pixels with so many evaluations of the cell.

    Args:
        opened: the `EncoderSolverHead` of a segmenter, or an `ExportedModel`.
        window: `(height, width)`, or `None` for whole images.
        stride: `(down, right)`, or `None` for the size of the window.
    """

    def __init__(self, opened, window=None, stride=None):
        self.window = window
        self.stride = stride or window
        self._answer = opened.answer()

    def predict(self, images, budget):
        """Returns the classes of the pixels of preprocessed images, and statistics.

        Args:
            images: tensor `(batch, height, width, channels)`.
            budget: int.

        Returns:
            int array `(batch, height, width)`; dict of `evaluations`, `residual` and
            `converged`, each an array with one entry for every solve.
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

    `measure_at_budgets` takes `score` and `summarize`.

    Args:
        class_names: Tuple of strings.
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
    """Returns how many pixels of each class (a row) were taken for each (a column).

    Args:
        labels: int array; pixels of the label 255 are left out.
        predicted: int array of the same shape.
        like: a matrix of the shape of the result.
    """
    is_valid = labels != IGNORED
    pairs = labels[is_valid] * len(like) + predicted[is_valid]
    return np.bincount(pairs, minlength=like.size).reshape(like.shape)


def class_iou(confusion):
    """Returns the intersection over union of each class, NaN for one that neither the
    labels nor the predictions have."""
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
