"""`deq-keras benchmark serving` and `warm_starts`: the costs of requests.

Serving: the time of a request with one image to a SavedModel, compared with the traced
model, and the seconds to write and check each format. Warm starts: the evaluations that
a previous equilibrium saves on test images that move by some pixels per frame. Numbers
of evaluations do not depend on the machine.
"""

import tempfile
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import deq_keras

from ..config import reading as configs
from ..conversion.export import export
from .measuring import compare
from .runner import Benchmark, positive
from .training_runs import job_of

_FORMATS = ("saved_model", "litert", "onnx")
_SPEEDS = (0.0, 0.05, 0.1, 0.25, 0.5, 1.0)
# How far images move to each side, in pixels.
_REACH = 1.0


def signatures(effort, config="digits/main", variant="contraction"):
    """Returns the time of signatures relative to the traced model, for one sample.

    Args:
        effort: `measuring.Effort`.
        config: String. A shipped config, whose model is not trained.
        variant: String.

    Returns:
        A dict with the ratio and `overhead_ms`, the difference of the medians, for
        `serve` and `serve_with_statistics`, which solve alike.
    """
    job = job_of(config, variant)
    model = job.build_model()
    served, samples = job.servable(model)
    request = tf.constant(samples[:1])
    traced = tf.function(lambda inputs: served(inputs, training=False))
    own_budget = {"max_iter": tf.constant(0, "int64"), "tol": tf.constant(-1.0)}
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        export(job, model, Path(folder) / "model", "saved_model")
        loaded = tf.saved_model.load(Path(folder) / "model").signatures
        (key,) = loaded["serve"].structured_input_signature[1]
        requests = {
            "serve": {key: request},
            "serve_with_statistics": {key: request, **own_budget},
        }
        for name, arguments in requests.items():
            ratio = compare(
                lambda name=name, arguments=arguments: np.asarray(
                    loaded[name](**arguments)["outputs"]
                ),
                lambda: np.asarray(traced(request)),
                effort,
            )
            results[name] = {**ratio._asdict(), "overhead_ms": ratio.difference}
    return results


def exports(effort, config="digits/main", variant="contraction", formats=_FORMATS):
    """Returns the seconds in which each format is written and checked, one run each.

    Args:
        effort: `measuring.Effort`. Ignored.
        config: String. A shipped config, whose model is not trained.
        variant: String.
        formats: Formats of `deq-keras export`.
    """
    del effort
    job = job_of(config, variant)
    model = job.build_model()
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in formats:
            start = time.perf_counter()
            export(job, model, Path(folder) / name, name)
            seconds[name] = time.perf_counter() - start
    return seconds


def warm_starts(effort, run, variant, speeds=_SPEEDS, frames=32):
    """Returns evaluations with and without the previous equilibrium, by speed.

    Args:
        effort: `measuring.Effort`. Ignored.
        run: Path of the work directory of a classification run.
        variant: String. One of its runs, such as `plain` or `plain/seed_0`.
        speeds: Pixels per frame.
        frames: Integer, at least 2.
    """
    del effort
    from ..runs import variants
    from ..runs.work_directory import WorkDirectory

    directory = WorkDirectory.open(run)
    configs.run_config(directory.config, variant)
    ((_, job, model),) = variants.trained(directory, [variant])
    model, images = job.servable(model)
    return {
        f"{speed:g} pixels": _warm_evaluations(model, images, speed, frames)
        for speed in speeds
    }


def _warm_evaluations(model, images, speed, num_frames):
    """Returns statistics of all frames after the first.

    Args:
        model: A classifier with one `DEQ` layer.
        images: Array `(samples, height, width, channels)`.
        speed: Float. Pixels per frame.
        num_frames: Integer, at least 2.

    Returns:
        A dict: `cold` and `warm`, mean evaluations from the cell's own start and from
        the equilibrium of the previous frame; `saved`, the fraction that warm starts
        save; `agreement`, the fraction of frames with the same class; `converged`, the
        fraction of warm solves that converged.
    """
    warm_model = deq_keras.serving.WarmStartModel(model)
    (name,) = warm_model.input_specs
    outputs, states = [], {}
    for frame in moving(images, speed, num_frames):
        cold = warm_model.predict_on_batch({name: frame})
        warm = warm_model.predict_on_batch({name: frame, **states})
        states = _converged_states(warm_model.state_specs, warm)
        outputs.append((cold, warm))
    # Skip the first frame, which follows no other.
    cold, warm = (
        {name: np.stack([output[name] for output in side]) for name in side[0]}
        for side in zip(*outputs[1:], strict=True)
    )
    means = [float(side["evaluations"].mean()) for side in (cold, warm)]
    same = cold["outputs"].argmax(axis=-1) == warm["outputs"].argmax(axis=-1)
    return {
        "cold": means[0],
        "warm": means[1],
        "saved": 1 - means[1] / means[0],
        "agreement": float(same.mean()),
        "converged": float((warm["status"] == deq_keras.solvers.CONVERGED).mean()),
    }


def _converged_states(names, response):
    """Returns the equilibria of a response as initial states; NaN, which selects the
    cell's own start, for samples that did not converge."""
    has_converged = response["status"] == deq_keras.solvers.CONVERGED
    states = {}
    for name in names:
        state = response[name.replace("initial_state", "equilibrium")]
        mask = has_converged.reshape(-1, *[1] * (state.ndim - 1))
        states[name] = np.where(mask, state, np.float32(np.nan))
    return states


def moving(images, speed, num_frames):
    """Yields frames of images that move to and fro, bilinear between pixels.

    Args:
        images: Array `(samples, height, width, channels)`.
        speed: Float. Pixels per frame.
        num_frames: Positive integer.
    """
    for step in range(num_frames):
        # A triangle wave between -_REACH and _REACH that starts at 0.
        phase = (step * speed + _REACH) % (4 * _REACH)
        shift = _REACH - abs(phase - 2 * _REACH)
        transform = np.array([[1, 0, -shift, 0, 1, 0, 0, 0]], "float32")
        transforms = np.repeat(transform, len(images), axis=0)
        yield np.asarray(keras.ops.image.affine_transform(images, transforms))


def _add_warm_start_arguments(parser):
    parser.add_argument("run", help="the work directory of a classification run")
    parser.add_argument("--variant", metavar="NAME", required=True)
    parser.add_argument("--frames", type=positive, default=32, help="default: 32")
    parser.add_argument(
        "--speeds",
        type=float,
        nargs="+",
        default=_SPEEDS,
        help="pixels per frame; default: 0 to 1",
    )


BENCHMARKS = {
    "serving": Benchmark(
        "Measures requests to a SavedModel, and exports.",
        {"signatures": signatures, "exports": exports},
    ),
    "warm_starts": Benchmark(
        "Counts evaluations on images that move, with and without the equilibrium of "
        "the frame before.",
        {"warm_starts": warm_starts},
        add_arguments=_add_warm_start_arguments,
    ),
}
