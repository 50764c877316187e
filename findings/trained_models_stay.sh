#!/usr/bin/env bash
# A trained Keras model on TensorFlow leaves its training graph in memory for good, also
# after `del`, `keras.backend.clear_session()` and `gc.collect()`.
#
# The optimizer of Keras calls `ReplicaContext.all_reduce`, in each step and also without
# a strategy. It is a `tf.custom_gradient`, and in a graph this registers its gradient in
# `tensorflow.python.framework.ops.gradient_registry`, which nothing leaves. The gradient
# holds tensors of the graph.
#
# Packages: keras 3.15.1, tensorflow 2.21.0 (Python 3.11, Linux, CPU), seen on 2026-11-30.
# Expected: no graph of a model that is gone is left, as after `predict`.
# Seen: 0 graphs after `predict` of 5 models, and at least 5 after one step of each.
# Fails if a later run sees other numbers.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet keras==3.15.1 tensorflow==2.21.0
cat > "$folder/count.py" << 'END'
import gc

import keras
import numpy as np
from tensorflow.python.framework.func_graph import FuncGraph

x, y = np.ones((8, 3)), np.ones((8, 1))


def graphs():
    keras.backend.clear_session()
    gc.collect()
    return sum(isinstance(one, FuncGraph) for one in gc.get_objects())


def left_behind(use):
    before = graphs()
    for _ in range(5):
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        use(model)
        del model
    return graphs() - before


predicted = left_behind(lambda model: model.predict(x, verbose=0))
trained = left_behind(lambda model: model.train_on_batch(x, y))
print("graphs of 5 models that are gone, predicted and trained:", predicted, trained)
assert predicted == 0 and trained >= 5, (predicted, trained)
END
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" "$folder/count.py"
