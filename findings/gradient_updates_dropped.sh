#!/usr/bin/env bash
# A tf.function that is differentiated from eager mode drops the updates of variables in
# its gradient functions. No error or warning is given.
#
# Package: tensorflow 2.21.0 (Python 3.11, Linux, CPU), seen on 2026-11-29.
# Expected: a gradient function that counts its runs in a tf.Variable counts one run for
#   each gradient, whether the function runs eagerly, is compiled and differentiated from
#   eager mode, or is differentiated within a compiled function.
# Seen: 1, 0 and 1. The gradients themselves are right.
# Fails if a later run sees other numbers.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet tensorflow==2.21.0
cat > "$folder/count.py" << 'EOF'
import tensorflow as tf

count = tf.Variable(0.0)


@tf.custom_gradient
def double(x):
    def gradient(upstream):
        count.assign_add(1.0)
        return 2.0 * upstream

    return 2.0 * x, gradient


def slope(function):
    count.assign(0.0)
    x = tf.constant(3.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.gradient(y, x)


def read(call):
    return float(call()), float(count)


found = [
    read(lambda: slope(double)),
    read(lambda: slope(tf.function(double))),
    read(tf.function(lambda: slope(double))),
]
print("gradient and runs of the gradient function:", found)
assert found == [(2.0, 1.0), (2.0, 0.0), (2.0, 1.0)], found
EOF
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" "$folder/count.py"
