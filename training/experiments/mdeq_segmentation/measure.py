"""Mean intersection over union at fixed numbers of function evaluations."""

import numpy as np

from ...data.segmentation import IGNORED
from ...evaluation.answers import means_of_solves
from .windows import predict_in_windows


class BudgetPredictor:
    """Predicts the classes of pixels with so many evaluations of the cell.

    Args:
        opened: the `CutModel` of a segmenter, or an `ExportedModel`.
        window: `(height, width)`, or `None` for whole images.
        stride: `(down, right)`, or `None` for that of the window.
    """

    def __init__(self, opened, window=None, stride=None):
        self.window = window
        self.stride = stride or window
        self._answer = opened.answers()

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


def mean_iou_at_budgets(predictor, batches, budgets, class_names):
    """Measures a segmenter at each budget.

    Every budget is a new solve with the model's own solver and tolerance, started from
    the cell's initial state.

    Args:
        predictor: a `BudgetPredictor`.
        batches: dataset of `(images, labels)` as the model takes them.
        budgets: list of ints, each a `max_iter`.
        class_names: tuple of strings.

    Returns:
        A list of one dict a budget: `budget`; `mean_iou`; `class_iou`, a dict of class
        names; `pixel_accuracy`; means over the solves of `evaluations`, `residual` and
        the share `converged`.
    """
    rows = []
    for budget in budgets:
        confusion = np.zeros((len(class_names), len(class_names)), "int64")
        solves = []
        for images, labels in batches:
            predicted, statistics = predictor.predict(images, budget)
            confusion += confusion_matrix(np.asarray(labels), predicted, confusion)
            solves.append(statistics)
        rows.append({"budget": budget, **_scores(confusion, class_names)})
        rows[-1].update(means_of_solves(solves))
    return rows


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
