"""The correlation of ranks."""

from typing import Any

import numpy as np


def rank_correlation(first: Any, second: Any) -> float:
    """Returns Spearman's rank correlation, ties having the mean of their ranks.

    Of the evaluations that samples took and of how hard they are: near 1, a model
    spends more on what is harder.

    Args:
        first: Array `(samples,)`, for example the `num_evaluations` of a solution.
        second: Array `(samples,)`, for example the lengths of paths.

    Returns:
        Float from -1 to 1; NaN where all numbers of one are the same.

    Raises:
        ValueError: If they are not two vectors of one length, of at least 2.

    Example:

    >>> round(deq_keras.diagnostics.rank_correlation([3, 5, 4], [10, 30, 20]), 3)
    1.0
    """
    first, second = np.asarray(first), np.asarray(second)
    if first.ndim != 1 or first.shape != second.shape or len(first) < 2:
        raise ValueError(
            "`first` and `second` must be vectors of one length, at least 2. Received: "
            f"shapes {first.shape} and {second.shape}."
        )
    x, y = (_ranks(vector) - (len(vector) + 1) / 2 for vector in (first, second))
    scale = np.sqrt(np.sum(x**2) * np.sum(y**2))
    return float(np.sum(x * y) / scale) if scale > 0 else float("nan")


def _ranks(vector: np.ndarray) -> np.ndarray:
    """Returns the ranks from 1 on."""
    _, index, counts = np.unique(vector, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[index]
