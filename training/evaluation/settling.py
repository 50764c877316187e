"""Statistics of convergence, which are `None` where undefined."""

import math

import numpy as np

from deq_keras import diagnostics

from ..data.reasoning import least_evaluations


def evaluations_until(tol, residuals):
    """Returns the number of evaluations to meet a tolerance, and whether it was met.

    Args:
        tol: Float, or `None`, which is never met.
        residuals: Array `(evaluations, examples)`. Residuals of each evaluation.
    """
    is_met = residuals <= (-1.0 if tol is None else tol)
    has_converged = is_met.any(axis=0)
    first = is_met.argmax(axis=0) + 1
    return np.where(has_converged, first, len(residuals)), has_converged


def still_falls(residuals):
    """Returns a mask of examples whose residual was still falling at the budget's end.

    The median over the last quarter of the evaluations must be at most 0.75 times the
    median over the second quarter. Cycles and noise have constant medians.

    Args:
        residuals: Array `(..., evaluations, examples)`. Residuals of each evaluation,
            NaN where an example had stopped or was non-finite. NaN counts as not
            falling.

    Returns:
        Boolean array `(..., examples)`.
    """
    count = residuals.shape[-2]
    second = np.median(residuals[..., count // 4 : -(-count // 2), :], axis=-2)
    last = np.median(residuals[..., 3 * count // 4 :, :], axis=-2)
    return last <= 0.75 * second


def floor(distance, reach):
    """Returns the minimum evaluations that transport information in all examples.

    Args:
        distance: Integer array `(examples,)`. See `least_evaluations`.
        reach: Positive integer, or `None` if unknown. The result is then `None` too.
    """
    return reach and int(np.max(least_evaluations(distance, reach)))


def correlation(first, second):
    """Returns Spearman's rank correlation, or `None` if an argument is constant."""
    return finite(diagnostics.rank_correlation(first, second))


def overthinking(budgets, accuracy):
    """Returns the accuracy lost from the best budget to ten times this budget, or
    `None` if no budget is ten times another."""
    if not any(10 * budget in budgets for budget in budgets):
        return None
    return diagnostics.overthinking(budgets, accuracy)


def finite(number):
    """Returns a finite number as a float. Returns `None` otherwise, for JSON."""
    return float(number) if math.isfinite(number) else None
