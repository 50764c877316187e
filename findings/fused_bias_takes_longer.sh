#!/usr/bin/env bash
# On a CPU, a small matrix product with a bias added by `tf.nn.bias_add`, which Keras' `Dense`
# calls, takes much longer than the same product with the bias added by `+`: TensorFlow
# fuses the first pair into one kernel of oneDNN.
#
# Packages: tensorflow 2.21.0 (Python 3.11, Linux, two AMD EPYC cores with AVX-512), seen on
# 2026-11-30.
# Expected: a fused kernel is not slower than two kernels.
# Seen: twelve products of 64 x 32 by 32 x 32 in a loop take 1.24 ms with `bias_add` and
# .39 ms with `+`; .44 ms both with TF_ENABLE_ONEDNN_OPTS=0. At 8 x 32 3.0 times as long,
# at 64 x 128 2.8, at 1 x 512 2.4, at 256 x 512 1.0. Other processors may differ.
# Fails if `bias_add` takes less than 1.5 times as long as `+`.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet tensorflow==2.21.0
cat > "$folder/time.py" << 'END'
import time

import tensorflow as tf

kernel = tf.Variable(0.1 * tf.random.normal((32, 32)))
bias = tf.Variable(tf.zeros(32))
rows = tf.random.normal((64, 32))


def loop(add):
    def body(i, state):
        return i + 1, tf.tanh(add(state @ kernel, bias) + rows)

    @tf.function
    def call():
        return tf.while_loop(lambda i, _: i < 12, body, [0, tf.zeros_like(rows)])[1]

    return call


calls = {"bias_add": loop(tf.nn.bias_add), "+": loop(lambda one, other: one + other)}
fastest = dict.fromkeys(calls, float("inf"))
for _ in range(300):
    for name, call in calls.items():
        start = time.perf_counter()
        call()
        fastest[name] = min(fastest[name], 1e3 * (time.perf_counter() - start))
print("twelve products, fastest of 300 loops [ms]:", fastest)
assert fastest["bias_add"] > 1.5 * fastest["+"], fastest
END
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" "$folder/time.py"
