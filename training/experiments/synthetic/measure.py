"""Measurements of a trained scalar model."""

import numpy as np
import tensorflow as tf

import deq_keras
from deq_keras.solvers import SolveRequest


def measure(model, inputs, targets, config):
    """Measures the error, the slope df/dz and the evaluations of solves.

    Args:
        model: A trained model.
        inputs: Array `(examples, 1)`.
        targets: Array `(examples, 1)`.
        config: A `SyntheticEvaluationConfig`.

    Returns:
        A dict of `failed` (whether a constant would predict better), `mse`, `rmse`,
        `mean_slope` (mean |df/dz| at the equilibrium, exact), `max_slope` (the
        largest), `fraction_above_one` (of samples with |df/dz| >= 1, where plain
        iteration cannot converge) and for each solver `<name>_evaluations` (mean),
        `<name>_not_converged` (number of samples) and `<name>_rmse`.
    """
    layer = model.get_layer("deq")
    solution = layer.solve(inputs)
    slope = np.abs(slopes(layer, inputs, solution.point))
    squared_error = float(np.mean(np.square(solution.value.numpy() - targets)))
    counts = {
        f"{name}_{key}": value
        for name in config.solvers
        for key, value in _count(layer, inputs, targets, name, config).items()
    }
    return {
        # A layer with NaN weights returns its initial state of zeros, and counts too.
        "failed": not squared_error < float(np.var(targets)),
        "mse": squared_error,
        "rmse": squared_error**0.5,
        "mean_slope": float(slope.mean()),
        "max_slope": float(slope.max()),
        "fraction_above_one": float(np.mean(slope >= 1.0)),
        **counts,
    }


def slopes(layer, x, state):
    """Returns df/dz at a state, `(batch,)`: the product of a scalar Jacobian with 1."""
    linearization = layer.problem(x).linearize(state)
    return linearization.vjp(tf.ones_like(linearization.value)).numpy()[:, 0]


def surface(layer, x, z):
    """Returns f(z; x) for every pair of the vectors x and z, `(len(z), len(x))`."""
    grid_x, grid_z = np.meshgrid(x, z)  # (Z, X) each
    injection = layer.cell.inject(_column(grid_x))
    return layer.cell(_column(grid_z), injection).numpy().reshape(grid_x.shape)


def trajectory(layer, x, solver, evaluations):
    """Returns the points at which a solver evaluates f(.; x), starting with z = 0.

    Args:
        layer: the `DEQ` layer.
        x: float.
        solver: str. Name of the solver.
        evaluations: int. Number of points.
    """
    # Without a tolerance, a solve of k evaluations returns the k-th of its points.
    settings = {"class_name": solver, "max_iter": evaluations, "tol": None}
    solver = deq_keras.solvers.get(settings)
    points = [
        _solve(layer, _column(x), solver, max_iter).point
        for max_iter in range(1, evaluations + 1)
    ]
    return np.array([point.numpy().item() for point in points])


def _count(layer, inputs, targets, name, config):
    settings = {"class_name": name, "max_iter": config.max_iter, "tol": config.tol}
    solution = _solve(layer, inputs, deq_keras.solvers.get(settings))
    is_open = solution.status.numpy() != deq_keras.solvers.CONVERGED
    error = solution.value.numpy() - targets
    return {
        "evaluations": float(np.mean(solution.num_evaluations)),
        "not_converged": int(is_open.sum()),
        "rmse": float(np.sqrt(np.mean(np.square(error)))),
    }


def _solve(layer, x, solver, max_iter=None):
    """Solves with another solver, and does not change the layer's solver."""
    problem = layer.problem(x)
    request = layer.request(problem, SolveRequest("cell", max_iter=max_iter))
    return solver.solve(problem, request)


def _column(values):
    return tf.reshape(tf.cast(values, tf.float32), (-1, 1))
