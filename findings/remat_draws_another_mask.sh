#!/usr/bin/env bash
# Under `keras.remat` on TensorFlow, `Dropout` has the gradient of another mask than its
# output: the recomputation draws new random numbers. `BatchNormalization` updates its
# moving mean a second time.
#
# Packages: keras 3.15.1, tensorflow 2.21.0 (Python 3.11, Linux, CPU), seen on 2026-11-30.
# Expected: for inputs of one, the gradient of the sum of dropout(x) equals its output, as
#   without `remat`, and one step moves the mean of a batch normalization once.
# Seen: other places of the gradient than of the output are zero, in eager mode and in a
#   `tf.function`. The mean moves from 0 to 0.75 of the mean of the batch, with a momentum
#   of 0.5, and not to 0.5.
# Fails if a later run sees something else.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet keras==3.15.1 tensorflow==2.21.0
cat > "$folder/masks.py" << 'END'
import keras
import numpy as np
import tensorflow as tf


def step(layer, wrap, is_compiled):
    """Returns the output of a layer in training, and the gradient of its sum."""
    keras.utils.set_random_seed(0)
    x = tf.ones((4, 64))
    layer.build(x.shape)
    call = wrap(lambda x: layer(x, training=True))

    def differentiate():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = call(x)
        return y, tape.gradient(y, x)

    if is_compiled:
        differentiate = tf.function(differentiate)
    return [tensor.numpy() for tensor in differentiate()]


def plain(call):
    return call


def uses_one_mask(wrap, is_compiled):
    layer = keras.layers.Dropout(0.5, seed=1)
    return np.array_equal(*step(layer, wrap, is_compiled))


def moving_mean(wrap):
    layer = keras.layers.BatchNormalization(momentum=0.5)
    step(layer, wrap, False)
    return float(layer.moving_mean[0])


masks = [
    [uses_one_mask(wrap, is_compiled) for wrap in (plain, keras.remat)]
    for is_compiled in (False, True)
]
print("one mask without and with remat, eager and compiled:", masks)
means = [moving_mean(wrap) for wrap in (plain, keras.remat)]
print("moving mean after a step, without and with remat:", means)
assert masks == [[True, False], [True, False]], masks
assert means == [0.5, 0.75], means
END
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" "$folder/masks.py"
