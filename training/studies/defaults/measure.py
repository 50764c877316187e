"""What is measured of a trained model."""

import math

import numpy as np

import deq_keras
from deq_keras.solvers import SolveRequest

from ...evaluation.readout import split_model


def measure(model, score, examples, config):
    """Solves for the test examples at two budgets and looks at df/dz.

    Args:
        model: a trained model.
        score: `(predictions, targets)` to a number.
        examples: the test `Examples`.
        config: a `MeasurementConfig`.

    Returns:
        A dict of `score`, `residual` (mean relative residual) and `evaluations` (mean,
        NFE) of the layer's own solver; `long_score`, `long_residual` and
        `long_evaluations` with the long budget; `spectral_radius` and
        `largest_spectral_radius` (mean and largest of some samples, those whose radius
        was found) and `spectral_radius_converged`, the share of these. A number that is
        not finite or not there is `None`.
    """
    opened = split_model(model)
    features = opened.encode.predict(examples.inputs, verbose=0)
    solution = opened.layer.solve(features)
    long = opened.layer.solve(features, SolveRequest(max_iter=config.long_budget))
    head = slice(config.num_samples)
    radius = deq_keras.diagnostics.spectral_radius(
        opened.layer.problem(features[head]).linearize(long.point[head]),
        max_iter=config.max_iter,
    )
    found = radius.value.numpy()[radius.converged.numpy()]
    long_numbers = _of_solution(opened, long, score, examples.targets)
    numbers = {
        **_of_solution(opened, solution, score, examples.targets),
        **{f"long_{name}": number for name, number in long_numbers.items()},
        "spectral_radius": float(np.mean(found)) if found.size else math.nan,
        "largest_spectral_radius": float(np.max(found, initial=-math.inf)),
        "spectral_radius_converged": float(np.mean(radius.converged)),
    }
    return {name: _finite(number) for name, number in numbers.items()}


def relative_residual(solution):
    """Returns |f(z) - z| / |f(z)| of each sample at its best iterate, `(batch,)`."""
    value, point = solution.value.numpy(), solution.point.numpy()
    axes = tuple(range(1, value.ndim))
    difference = np.sqrt(np.sum(np.square(value - point), axis=axes))
    scale = np.sqrt(np.sum(np.square(value), axis=axes))
    # If f(z) = 0, the residual is zero at the equilibrium z = 0 and infinite elsewhere.
    infinite = np.where(difference > 0, np.inf, 0.0)
    return np.divide(difference, scale, out=infinite, where=scale > 0)


def _of_solution(opened, solution, score, targets):
    predictions = opened.classify.predict(solution.value.numpy(), verbose=0)
    return {
        "score": score(predictions, targets),
        "residual": float(np.mean(relative_residual(solution))),
        "evaluations": float(np.mean(solution.num_evaluations)),
    }


def _finite(number):
    return number if math.isfinite(number) else None
