"""Statistics of convergence, `None` where they are undefined."""

import math

import numpy as np

from deq_keras import diagnostics

from ..data.reasoning import least_evaluations


def evaluations_until(tol, residuals):
    """Returns how many evaluations it takes to meet a tolerance, and whether it is met.

    Args:
        tol: float, or `None`, which is never met.
        residuals: array `(evaluations, examples)`, of each evaluation.
    """
    is_met = residuals <= (-1.0 if tol is None else tol)
    has_converged = is_met.any(axis=0)
    first = is_met.argmax(axis=0) + 1
    return np.where(has_converged, first, len(residuals)), has_converged


def still_falls(residuals):
    """Returns for which examples the residual was still falling when the budget ended.

    The median over the last quarter of the evaluations must be at most 0.75 times the
    median over the second quarter. Cycles and noise keep their medians.

    Args:
        residuals: array `(..., evaluations, examples)`, of each evaluation, NaN where
            an example was done or not finite. NaN does not fall.

    Returns:
        Bool array `(..., examples)`.
    """
    count = residuals.shape[-2]
    second = np.median(residuals[..., count // 4 : -(-count // 2), :], axis=-2)
    last = np.median(residuals[..., 3 * count // 4 :, :], axis=-2)
    return last <= 0.75 * second


def floor(distance, reach):
    """Returns the least evaluations in which information travels as far as it has to in
    all examples.

    Args:
        distance: int array `(examples,)`, see `least_evaluations`.
        reach: int, or `None` where that is not known, as is what is returned.
    """
    return reach and int(np.max(least_evaluations(distance, reach)))


def correlation(first, second):
    """Returns Spearman's rank correlation, `None` where one does not vary."""
    return finite(diagnostics.rank_correlation(first, second))


def overthinking(budgets, accuracy):
    """Returns what is lost from the best budget to ten times it, `None` where there are
    no two such budgets."""
    if not any(10 * budget in budgets for budget in budgets):
        return None
    return diagnostics.overthinking(budgets, accuracy)


def finite(number):
    """Returns a finite float, else `None`: JSON has no other floats."""
    return float(number) if math.isfinite(number) else None
