"""Accuracy that a model loses at larger budgets."""

from collections.abc import Sequence

import numpy as np

from deq_keras.core.checks import check_counts

# `overthinking` compares a budget with this multiple of it.
_FACTOR = 10


def overthinking(budgets: Sequence[int], accuracy: Sequence[float]) -> float:
    """Returns the accuracy lost from the best budget to ten times this budget.

    A model that converges keeps its accuracy, so the loss is 0. A model trained for a
    fixed number of steps can be accurate there and degrade later (Bansal et al., 2022).
    The best budget is the smallest one with the highest accuracy, among the budgets
    whose tenfold was measured too.

    Args:
        budgets: Positive integers. Numbers of evaluations. At least one must be ten
            times another.
        accuracy: Floats. Accuracy at each budget.

    Returns:
        Float in the unit of `accuracy`. Negative if the model still improves.

    Raises:
        ValueError: If no budget is ten times another.

    Example:

    >>> round(deq_keras.diagnostics.overthinking([5, 50, 500], [0.7, 1.0, 0.4]), 3)
    0.6
    """
    budgets = check_counts("budgets", list(budgets))
    if len(accuracy) != len(budgets):
        raise ValueError(
            "`accuracy` must have one number for each budget. Received: "
            f"{len(accuracy)} of them for budgets={list(budgets)}."
        )
    measured = dict(zip(budgets, map(float, accuracy), strict=True))
    candidates = [b for b in sorted(measured) if _FACTOR * b in measured]
    if not candidates:
        raise ValueError(
            f"`budgets` must contain a budget and {_FACTOR} times that budget, such as "
            f"[10, 20, 100, 200]. Received: budgets={list(budgets)}."
        )
    best = candidates[np.argmax([measured[budget] for budget in candidates])]
    return measured[best] - measured[_FACTOR * best]
