"""Spearman's rank correlation."""

from typing import Any

import numpy as np


def rank_correlation(first: Any, second: Any) -> float:
    """Returns Spearman's rank correlation. Ties receive their mean rank.

    Compares, for example, the evaluations per sample with the difficulty of the
    samples: near 1, the model spends more evaluations on harder samples.

    Args:
        first: Array `(samples,)`. For example, the `num_evaluations` of a solution.
        second: Array `(samples,)`. For example, path lengths.

    Returns:
        Float in [-1, 1]. NaN if one of the arrays is constant, or has a NaN.

    Raises:
        ValueError: If the arrays are not vectors of the same length, at least 2.

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
    if np.isnan(first).any() or np.isnan(second).any():
        return float("nan")
    ranks = []
    for vector in (first, second):
        _, index, counts = np.unique(vector, return_inverse=True, return_counts=True)
        ranks.append((np.cumsum(counts) - (counts - 1) / 2)[index])
    with np.errstate(divide="ignore", invalid="ignore"):  # Constants: 0 / 0.
        return float(np.corrcoef(ranks[0], ranks[1])[0, 1])
