#!/usr/bin/env bash
# The gradient of `keras.ops.image.affine_transform` on TensorFlow is not the transpose of
# the operation, which is linear in the image: the gradient transforms the cotangent by the
# inverse of the transform, which interpolates with other weights. As the forward operator
# of a reconstruction, a rotation or a change of size thus has a wrong adjoint.
#
# Packages: keras 3.15.1, tensorflow 2.21.0 (Python 3.11, Linux, CPU), seen on 2026-11-30.
# Expected: <A x, c> = <x, gradient of <A x, c>>, as for `keras.ops.image.map_coordinates`.
# Seen: shifts and turns by 90 degrees are exact; turns by 10 and 30 degrees are off by 3 and
#   9 %, changes of size by 60 and 100 %, relative to the norm of the exact gradient.
#   `keras.layers.RandomRotation` uses the same operation. `map_coordinates` is exact.
# Fails if a later run sees something else.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet keras==3.15.1 tensorflow==2.21.0
cat > "$folder/rotate.py" << 'END'
import keras
import numpy as np
import tensorflow as tf

SIDE = 5
CENTER = (SIDE - 1) / 2


def affine(images, transform):
    rows = tf.constant([transform], "float32")
    return keras.ops.image.affine_transform(images, rows, data_format="channels_last")


def turn(degrees):
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    x, y = CENTER * (1 - c + s), CENTER * (1 - s - c)
    return [c, -s, x, s, c, y, 0, 0]


def resampled(images, transform):
    a, b, x, c, d, y, *_ = transform
    rows, columns = np.mgrid[:SIDE, :SIDE].astype("float32")
    places = np.stack([c * columns + d * rows + y, a * columns + b * rows + x])
    image = keras.ops.image.map_coordinates(images[0, ..., 0], places, order=1)
    return image[None, ..., None]


def error(function, transform):
    """Returns the distance of the gradient from the exact one, over its norm."""
    random, shape = np.random.default_rng(0), (1, SIDE, SIDE, 1)
    image, weights = (tf.constant(random.normal(size=shape), "float32") for _ in "ab")
    with tf.GradientTape() as tape:
        tape.watch(image)
        total = tf.reduce_sum(weights * function(image, transform))
    gradient = np.ravel(tape.gradient(total, image))
    basis = np.eye(SIDE * SIDE, dtype="float32").reshape(-1, *shape)
    matrix = [np.ravel(function(tf.constant(one), transform)) for one in basis]
    exact = matrix @ np.ravel(weights)
    return np.linalg.norm(gradient - exact) / np.linalg.norm(exact)


half = CENTER / 2
for name, transform, least, most in (
    ("shift by half a pixel", [1, 0, 0.5, 0, 1, 0, 0, 0], 0, 1e-6),
    ("turn by 90 degrees", turn(90), 0, 1e-5),
    ("turn by 10 degrees", turn(10), 0.01, 0.1),
    ("turn by 30 degrees", turn(30), 0.03, 0.2),
    ("enlarge twice", [0.5, 0, half, 0, 0.5, half, 0, 0], 0.5, 2.0),
    ("shrink twice", [2, 0, -CENTER, 0, 2, -CENTER, 0, 0], 0.5, 2.0),
):
    image = tf.constant(np.random.default_rng(1).normal(size=(1, SIDE, SIDE, 1)), "float32")
    inner = np.abs(affine(image, transform) - resampled(image, transform))[:, 1:-1, 1:-1]
    assert inner.max() < 1e-5, "not the same operation"
    found, other = error(affine, transform), error(resampled, transform)
    print(f"{name}: off by {found:.3f}; by map_coordinates {other:.1e}")
    assert least <= found <= most, name
    assert other < 1e-5, name
END
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" "$folder/rotate.py"
