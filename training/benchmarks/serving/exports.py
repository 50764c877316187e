"""Requests to an exported model, and how long it takes to export one."""

import tempfile
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

from ... import registry
from ...config import reading as configs
from ...config import shipped
from ...conversion.export import export
from .. import timing

_FORMATS = ("saved_model", "litert", "onnx")


def signatures(effort, config="digits/main", variant="regularized"):
    """Returns by how much a signature takes longer than the model, for one sample.

    Args:
        effort: a `timing.Effort`.
        config: name of a shipped config, whose model is not trained.
        variant: one of its variants.

    Returns:
        For `serve` and `serve_with_statistics`, which solve alike: the `ratio` to the
        traced model, and `overhead_ms`, the difference of the medians.
    """
    job, model = _untrained(config, variant)
    served, samples = job.servable(model)
    request = tf.constant(samples[:1])
    traced = tf.function(lambda inputs: served(inputs, training=False))
    with tempfile.TemporaryDirectory() as folder:
        export(job, model, Path(folder) / "model", "saved_model")
        loaded = tf.saved_model.load(Path(folder) / "model").signatures
        own_budget = {"max_iter": tf.constant(0, "int64"), "tol": tf.constant(-1.0)}
        asked = {
            "serve": {"inputs": request},
            "serve_with_statistics": {"inputs": request, **own_budget},
        }
        ratios = {
            name: timing.compare(
                lambda name=name: np.asarray(loaded[name](**asked[name])["outputs"]),
                lambda: np.asarray(traced(request)),
                effort,
            )
            for name in asked
        }
    return {
        name: {
            "overhead_ms": ratio.numerator.median - ratio.denominator.median,
            "ratio": ratio,
        }
        for name, ratio in ratios.items()
    }


def exports(effort, config="digits/main", variant="regularized", formats=_FORMATS):
    """Returns the seconds in which each format is written and checked, one run each.

    Args:
        effort: a `timing.Effort`, of which a single run takes no notice.
        config: name of a shipped config, whose model is not trained.
        variant: one of its variants.
        formats: those of `deq-keras export`.
    """
    del effort
    job, model = _untrained(config, variant)
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in formats:
            start = time.perf_counter()
            export(job, model, Path(folder) / name, name)
            seconds[name] = time.perf_counter() - start
    return seconds


def _untrained(config, variant):
    config = configs.variant(configs.load(shipped.find(config)), variant)
    job_class = registry.implementation(config.experiment)
    job = job_class(config, job_class.load_data(config.data, None))
    return job, job.build_model()
