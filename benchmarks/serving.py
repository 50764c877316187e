"""Measures requests to a SavedModel, and warm starts.

The time of a request with one image over the traced model's. Warm starts: the
evaluations that a previous equilibrium saves on test images that move by some pixels
per frame; they do not depend on the machine.
"""

import tempfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import deq_keras
from training import registry
from training.config import reading as configs
from training.config import shipped
from training.conversion.export import export
from training.costs import measuring
from training.costs.measuring import compare
from training.runs import variants
from training.runs.work_directory import WorkDirectory

_SPEEDS = (0.0, 0.05, 0.1, 0.25, 0.5, 1.0)
# How far images move to each side, in pixels.
_REACH = 1.0


def _main_job():
    """Returns the job of the main job's model, and the model, which is not trained."""
    config = configs.load(shipped.find("residual/digits"))
    config = configs.variant(config, "contraction")
    job = registry.implementation(config.experiment)(config)
    return job, job.build_model()


def signatures(effort):
    """Returns the time of signatures relative to the traced model, for one image.

    `overhead_ms` is the difference of the medians.
    """
    job, model = _main_job()
    served, samples = job.prepare_export(model)
    request = tf.constant(samples[:1])
    traced = tf.function(lambda inputs: served(inputs, training=False))
    own_budget = {"max_iter": tf.constant(0, "int64"), "tol": tf.constant(-1.0)}
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        export(served, samples, Path(folder) / "model", "saved_model")
        loaded = tf.saved_model.load(Path(folder) / "model").signatures
        (key,) = loaded["serve"].structured_input_signature[1]
        for name, budget in (("serve", {}), ("serve_with_statistics", own_budget)):
            ratio = compare(
                lambda name=name, budget=budget: np.asarray(
                    loaded[name](**{key: request}, **budget)["outputs"]
                ),
                lambda: np.asarray(traced(request)),
                effort,
            )
            results[name] = {**ratio._asdict(), "overhead_ms": ratio.difference}
    return results


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
    if run is None:
        return "needs the work directory of a classification run: --run RUN"
    directory = WorkDirectory.open(run)
    configs.run_config(directory.config, variant)
    ((_, job, model),) = variants.load_models(directory, [variant])
    model, images = job.prepare_export(model)
    return {
        f"{speed:g} pixels": _warm_evaluations(model, images, speed, frames)
        for speed in speeds
    }


def _warm_evaluations(model, images, speed, num_frames):
    """Returns statistics of all frames after the first.

    `cold` and `warm` are mean evaluations from the cell's own start and from the
    equilibrium of the previous frame; `agreement` is the fraction of frames with the
    same class, and `converged` the fraction of warm solves that converged.
    """
    encode, layer, head = deq_keras.diagnostics.split_model(model)

    @tf.function
    def ask(frame, state=None):
        request = deq_keras.solvers.SolveRequest(initial_state=state)
        solution = layer.solve(encode(frame), request)
        return {
            "outputs": head(solution.value),
            "evaluations": solution.num_evaluations,
            "status": solution.status,
            "state": solution.value,
        }

    outputs, state = [], None
    for frame in moving(images, speed, num_frames):
        cold, warm = ask(frame), ask(frame, state)
        # NaN selects the cell's own start, for samples that did not converge.
        has_converged = warm["status"] == deq_keras.solvers.CONVERGED
        mask = tf.reshape(has_converged, (-1, *[1] * (warm["state"].shape.rank - 1)))
        state = tf.where(mask, warm["state"], np.float32(np.nan))
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
        "agreement": float(same.mean()),
        "converged": float((warm["status"] == deq_keras.solvers.CONVERGED).mean()),
    }


def moving(images, speed, num_frames):
    """Yields frames of images `(samples, height, width, channels)` that move to and
    fro by `speed` pixels a frame, bilinear between pixels."""
    for step in range(num_frames):
        # A triangle wave between -_REACH and _REACH that starts at 0.
        phase = (step * speed + _REACH) % (4 * _REACH)
        shift = _REACH - abs(phase - 2 * _REACH)
        transform = np.array([[1, 0, -shift, 0, 1, 0, 0, 0]], "float32")
        transforms = np.repeat(transform, len(images), axis=0)
        yield np.asarray(keras.ops.image.affine_transform(images, transforms))


def _add_arguments(parser):
    parser.add_argument("--run", metavar="DIR", help="a classification run, trained")
    parser.add_argument("--variant", metavar="NAME", help="variant of the run")


MEASUREMENTS = {"signatures": signatures, "warm_starts": warm_starts}


def main(argv=None):
    return measuring.run("serving", __doc__, MEASUREMENTS, argv, _add_arguments)


if __name__ == "__main__":
    main()
