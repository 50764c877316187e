#!/usr/bin/env bash
# The first `fit` of a Keras model traces the training step twice, because the optimizer
# creates its variables within the step. An optimizer that is built before is traced once.
#
# Packages: keras 3.15.1, tensorflow 2.21.0 (Python 3.11, Linux, CPU), seen on 2026-11-30.
# Expected: Keras builds metrics before the first step, so the step is traced once.
# Seen: 2 traces; 1 after `model.optimizer.build(model.trainable_variables)`.
# Fails if a later run sees other numbers.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet keras==3.15.1 tensorflow==2.21.0
cat > "$folder/count.py" << 'END'
import keras
import numpy as np

traces = 0


class Counted(keras.layers.Dense):
    def call(self, inputs, training=None):
        global traces
        traces += bool(training)
        return super().call(inputs)


def count(is_built):
    global traces
    model = keras.Sequential([keras.Input((3,)), Counted(1)])
    model.compile("adam", "mse")
    if is_built:
        model.optimizer.build(model.trainable_variables)
    traces = 0
    model.fit(np.ones((8, 3)), np.ones((8, 1)), verbose=0)
    return traces


found = count(False), count(True)
print("traces of the training step, without and with a built optimizer:", found)
assert found == (2, 1), found
END
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" "$folder/count.py"
