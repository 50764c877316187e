#!/usr/bin/env bash
# `get_state_tree` of a Keras model holds the variables of the model, not their values: a
# tree that is kept changes as the model trains, and `set_state_tree` restores nothing.
#
# Packages: keras 3.15.1, tensorflow 2.21.0 (Python 3.11, Linux, CPU), seen on 2026-11-30.
# Expected: setting a tree that was taken before training restores the weights.
# Seen: not with the default `value_format`; with "numpy_array" it does.
# Fails if a later run sees something else.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet keras==3.15.1 tensorflow==2.21.0
cat > "$folder/restore.py" << 'END'
import keras
import numpy as np

x, y = np.ones((8, 3)), np.ones((8, 1))


def restores(*arguments):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    before, tree = model.get_weights(), model.get_state_tree(*arguments)
    model.fit(x, y, verbose=0)
    model.set_state_tree(tree)
    return np.array_equal(model.get_weights()[0], before[0])


found = restores(), restores("numpy_array")
print("restored from the default tree, and from one of arrays:", found)
assert found == (False, True), found
END
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" "$folder/restore.py"
