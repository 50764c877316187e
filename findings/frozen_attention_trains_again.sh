#!/usr/bin/env bash
# A frozen `keras.layers.MultiHeadAttention` trains again in a model that was loaded from a
# `.keras` file: its sublayers are trainable, though `trainable` of the layer is False.
# Setting `trainable = False` once more changes nothing on TensorFlow, which ignores the
# assignment of a value that an attribute has already. No error or warning is given.
#
# Packages: keras 3.15.1, tensorflow 2.21.0 (Python 3.11, Linux, CPU), seen on 2026-12-01.
# Expected: a frozen layer has no trainable weights in the loaded model either.
# Seen: 0 trainable weights in the saved model, 8 in the loaded one, 8 after setting
#   `trainable = False` again, and 0 after setting it to True and then to False. `fit` of the
#   loaded model moves the frozen weights.
# Fails if a later run sees other numbers.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet keras==3.15.1 tensorflow==2.21.0
cat > "$folder/frozen.py" << 'END'
import sys

import keras
import numpy as np

inputs = keras.Input((5, 8))
attention = keras.layers.MultiHeadAttention(2, 4, name="attention")
model = keras.Model(inputs, attention(inputs, inputs))
attention.trainable = False
model.save(f"{sys.argv[1]}/model.keras")
loaded = keras.saving.load_model(f"{sys.argv[1]}/model.keras")
layer = loaded.get_layer("attention")
assert not layer.trainable
counts = [len(model.trainable_variables), len(loaded.trainable_variables)]

before = [weight.numpy() for weight in layer.weights]
x = np.random.default_rng(0).normal(size=(4, 5, 8)).astype("float32")
loaded.compile("sgd", "mse")
loaded.fit(x, np.zeros_like(x), verbose=0)
moved = any(np.any(w != old) for w, old in zip(layer.weights, before))

layer.trainable = False
counts.append(len(loaded.trainable_variables))
layer.trainable = True
layer.trainable = False
counts.append(len(loaded.trainable_variables))
print("trainable weights: saved, loaded, False again, True and False:", *counts)
print("frozen weights moved in fit of the loaded model:", moved)
assert counts == [0, 8, 8, 0] and moved, (counts, moved)
END
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" "$folder/frozen.py" "$folder"
