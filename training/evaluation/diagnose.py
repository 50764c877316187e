"""Convergence and stability of a trained model's equilibrium."""

import functools

import numpy as np
import tensorflow as tf

import deq_keras
from deq_keras.core.rounding import full_float32
from deq_keras.solvers import SolveRequest

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


class Diagnosis:
    """Measures residuals over evaluations, and the Jacobian df/dz of samples.

    Args:
        layer: A `DEQ` layer.
        encode: Function from a batch to the inputs of the layer.
        max_iter: Positive integer. Evaluations of every solve.
    """

    def __init__(self, layer, encode, max_iter):
        self._layer = layer
        self._encode = encode
        self._max_iter = max_iter
        # TensorFlow counts the traces of a method over all of its instances, and warns
        # of many. For partial functions, it counts each one alone.
        self._measure = tf.function(
            functools.partial(self._measure_batch),
            reduce_retracing=True,
            autograph=False,
        )

    def of(self, batches):
        """Measures an iterable of batches.

        Returns:
            A dict with these keys:
            `residual_quantiles`: List with one dict per evaluation 1 ... max_iter:
                `budget` and the quantiles over samples of the smallest residual so far.
            `evaluations`, `residual`, `converged`: Means over samples of a solve with
                the solver's own tolerance and at most `max_iter` evaluations.
            `spectral_radius`: Dict of the `mean` and the quantiles over samples with a
                reliable estimate (`None` without any), and `converged`, the fraction of
                these samples. Measured at the best iterate of a solve without a
                tolerance.
            `samples`: List with one dict per sample: the `residual` of a solve that
                spends the budget of the solver, and `jacobian_norm`, an estimate of
                |df/dz|_F^2 over the number of entries of the state.
        """
        with full_float32():
            measured = [self._measure(batch) for batch in batches]
        samples = {
            name: np.concatenate([np.asarray(batch[name]) for batch in measured])
            for name in measured[0]
        }
        means = ("evaluations", "residual", "converged")
        return {
            "residual_quantiles": _residual_quantiles(samples["trace"]),
            **{name: float(samples[name].mean()) for name in means},
            "spectral_radius": _radius_statistics(
                samples["radius"], samples["radius_converged"]
            ),
            "samples": [
                {"residual": float(residual), "jacobian_norm": float(norm)}
                for residual, norm in zip(
                    samples["final_residual"], samples["jacobian_norm"], strict=True
                )
            ],
        }

    def _measure_batch(self, batch):
        layer, max_iter, inputs = self._layer, self._max_iter, self._encode(batch)
        full = layer.solve(inputs, SolveRequest(max_iter=max_iter, tol=0.0))
        stopped = layer.solve(inputs, SolveRequest(max_iter=max_iter))
        linearization = layer.problem(inputs).linearize(full.point)
        radius = deq_keras.diagnostics.spectral_radius(linearization)
        spent = layer.solve(inputs, SolveRequest(tol=0.0))
        linearization = layer.problem(inputs).linearize(spent.point)
        squares = tf.square(deq_keras.diagnostics.jacobian_norm(linearization))
        size = sum(tf.size(leaf) for leaf in tf.nest.flatten(spent.point))
        return {
            "trace": tf.transpose(full.trace),  # (B, max_iter)
            "evaluations": stopped.num_evaluations,
            "residual": stopped.residual,
            "converged": tf.equal(stopped.status, deq_keras.solvers.CONVERGED),
            "radius": radius.value,
            "radius_converged": radius.converged,
            "final_residual": spent.residual,
            "jacobian_norm": squares / tf.cast(size // tf.size(squares), squares.dtype),
        }


def _residual_quantiles(trace):
    # A trace is NaN after its sample has stopped. `fmin` ignores NaN.
    best = np.fmin.accumulate(trace, axis=1)  # (N, max_iter)
    return [
        {"budget": k + 1, **_quantiles(residuals)} for k, residuals in enumerate(best.T)
    ]


def _radius_statistics(radii, converged):
    found = radii[converged]
    numbers = {"mean": float(found.mean()), **_quantiles(found)} if found.size else {}
    names = ("mean", *map(_name, QUANTILES))
    return {
        **{name: numbers.get(name) for name in names},
        "converged": float(converged.mean()),
    }


def _quantiles(values):
    return {_name(q): float(np.quantile(values, q)) for q in QUANTILES}


def _name(quantile):
    return f"q{100 * quantile:.0f}"
