"""Evaluations on images that move, with and without a previous equilibrium."""

import keras
import numpy as np

import deq_keras

# How far images move to each side, in pixels.
_REACH = 1.0


def measure(model, images, speed, num_frames):
    """Returns the mean evaluations of a frame, after the first.

    Args:
        model: a classifier with one `DEQ` layer.
        images: array `(samples, height, width, channels)`.
        speed: float. Pixels a frame.
        num_frames: int, at least 2.

    Returns:
        Dict of `speed`; `cold` and `warm`, mean evaluations; `saved`, the share that
        warm starts save; `agreement`, the share of frames of the same class; and
        `converged` of the warm solves.
    """
    warm_model = deq_keras.serving.WarmStartModel(model)
    shapes = {name: spec.shape[1:] for name, spec in warm_model.state_specs.items()}
    cache = deq_keras.serving.EquilibriumCache(warm_model.predict_on_batch, shapes)
    answers = []
    for frame in moving(images, speed, num_frames):
        cold = warm_model.predict_on_batch({"inputs": frame})
        answers.append((cold, cache({"inputs": frame}, keys=range(len(frame)))))
    # The first frame has none before it.
    cold, warm = (_stacked(part[1:]) for part in zip(*answers, strict=True))
    means = [float(part["evaluations"].mean()) for part in (cold, warm)]
    same = cold["outputs"].argmax(axis=-1) == warm["outputs"].argmax(axis=-1)
    return {
        "speed": speed,
        "cold": means[0],
        "warm": means[1],
        "saved": 1 - means[1] / means[0],
        "agreement": float(same.mean()),
        "converged": float((warm["status"] == deq_keras.solvers.CONVERGED).mean()),
    }


def _stacked(answers):
    return {name: np.stack([a[name] for a in answers]) for name in answers[0]}


def moving(images, speed, num_frames):
    """Yields frames of images that move to and fro, bilinear between pixels.

    Args:
        images: array `(samples, height, width, channels)`.
        speed: float. Pixels a frame.
        num_frames: int.
    """
    for step in range(num_frames):
        # A triangle wave between -_REACH and _REACH that starts at 0.
        phase = (step * speed + _REACH) % (4 * _REACH)
        shift = _REACH - abs(phase - 2 * _REACH)
        transform = np.array([[1, 0, -shift, 0, 1, 0, 0, 0]], "float32")
        transforms = np.repeat(transform, len(images), axis=0)
        yield np.asarray(keras.ops.image.affine_transform(images, transforms))
