"""Samples of trained equilibria: residuals over evaluations, and the Jacobian."""

import statistics

import numpy as np
import tensorflow as tf

import deq_keras
from deq_keras.solvers import SolveRequest

from ..config import reading as configs
from ..runs import variants
from ..runs.checkpoint import compiled_once
from ..runs.train import train
from .progress import measured


def measure(directory, runs, folder):
    """Measures the samples of finished runs, or reads finished measurements.

    Args:
        directory: `WorkDirectory` of the runs.
        runs: List of names of runs that have an equilibrium.
        folder: `pathlib.Path` of a folder for the measurements.

    Returns:
        Dict of runs to dicts of lists with one entry per sample; see `Job.samples`. All
        solves spend their budget. `traces`: residuals of the evaluations 1 to
        `evaluation.max_iter`, also of those that are worse than before. `residuals`:
        smallest residual at the budget of the solver. `jacobians`: an estimate of
        |df/dz|_F^2 over the number of entries of the state, at its iterate.
    """
    jobs, found = variants.make_jobs(directory, runs), {}
    for names in configs.by_variant({name: name for name in runs}).values():
        with compiled_once([jobs[name] for name in names]):
            requests = {name: jobs[name] for name in names}
            found |= measured(folder, requests, _of_run, _line)
    return found


def _line(result):
    return f"median residual {statistics.median(result['residuals']):.2g}"


def _of_run(job):
    model, _ = train(job, job.folder)  # The run is finished, so this loads its model.
    measure = job.compiled.once(model, "equilibria", lambda: _measurement(job, model))
    batches = [measure(batch) for batch in job.samples(model)]
    return {
        name: np.concatenate([batch[name] for batch in batches]).tolist()
        for name in batches[0]
    }


def _measurement(job, model):
    """Returns a compiled function of a batch; see `measure`."""
    opened = job.opened(model)
    layer, max_iter = opened.layer, job.config.evaluation.max_iter

    def measure(batch):
        inputs = opened.encode(batch)
        full = layer.solve(inputs, SolveRequest(max_iter=max_iter, tol=0.0))
        stopped = layer.solve(inputs, SolveRequest(tol=0.0))
        linearization = layer.problem(inputs).linearize(stopped.point)
        squares = deq_keras.diagnostics.jacobian_norm(linearization) ** 2
        leaves = tf.nest.flatten(stopped.point)
        size = tf.add_n([tf.size(leaf) for leaf in leaves]) // tf.size(squares)
        return {
            "traces": tf.transpose(full.trace),
            "residuals": stopped.residual,
            "jacobians": squares / tf.cast(size, squares.dtype),
        }

    return tf.function(measure, reduce_retracing=True, autograph=False)
