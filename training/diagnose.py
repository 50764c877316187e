"""How a trained classifier's equilibrium is reached, and how stable it is."""

import csv
import io

import numpy as np
import tensorflow as tf

import deq_keras
from training.atomic_file import write_text
from training.data import evaluation_batches
from training.equilibrium_parts import cut

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


def diagnose(model, split, max_iter, batch_size=64):
    """Measures residuals against evaluations, and the spectral radius of df/dz.

    Args:
        model: a functional classifier with one `DEQ` layer.
        split: the `Split` to measure on.
        max_iter: int. Evaluations of every solve.
        batch_size: int. Defaults to `64`.

    Returns:
        A dict:
        `residual_quantiles`: one dict for each evaluation 1 ... max_iter: `budget` and
            the quantiles over samples of the smallest residual so far.
        `evaluations`, `residual`, `converged`: means of a solve to the tolerance of the
            model's solver with at most `max_iter` evaluations.
        `spectral_radius`: dict of `mean`, the quantiles, and `converged`, the share of
            samples for which the estimate is reliable; at the best iterate of the solve
            without a tolerance.
    """
    parts = cut(model)

    @tf.function(reduce_retracing=True)
    def measure(images):
        inputs = parts.encode(images)
        full = parts.layer.solve(inputs, max_iter=max_iter, tol=0.0)
        stopped = parts.layer.solve(inputs, max_iter=max_iter)
        linearization = parts.layer.linearize(inputs, full.point)
        radius = deq_keras.diagnostics.spectral_radius(linearization)
        return {
            "trace": tf.transpose(full.trace),  # (B, max_iter)
            "evaluations": stopped.num_evaluations,
            "residual": stopped.residual,
            "converged": tf.equal(stopped.status, deq_keras.solvers.CONVERGED),
            "radius": radius.value,
            "radius_converged": radius.converged,
        }

    batches = [measure(images) for images, _ in evaluation_batches(split, batch_size)]
    samples = {
        name: np.concatenate([np.asarray(batch[name]) for batch in batches])
        for name in batches[0]
    }
    means = ("evaluations", "residual", "converged")
    return {
        "residual_quantiles": _residual_quantiles(samples["trace"]),
        **{name: float(samples[name].mean()) for name in means},
        "spectral_radius": {
            "mean": float(samples["radius"].mean()),
            **_quantiles(samples["radius"]),
            "converged": float(samples["radius_converged"].mean()),
        },
    }


def write_residuals(path, quantiles):
    """Writes the `residual_quantiles` of `diagnose` as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, quantiles[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(quantiles)
    write_text(path, text.getvalue())


def _residual_quantiles(trace):
    # A trace ends in NaN where its sample was done. `fmin` passes over NaN.
    best = np.fmin.accumulate(trace, axis=1)  # (N, max_iter)
    return [
        {"budget": k + 1, **_quantiles(residuals)} for k, residuals in enumerate(best.T)
    ]


def _quantiles(values):
    return {f"q{100 * q:.0f}": float(np.quantile(values, q)) for q in QUANTILES}
