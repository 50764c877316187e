"""Export a model with its solver; a client sets the budget of each request."""

import keras
import numpy as np

import deq_keras

keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(512, 8)).astype("float32")
y = np.sin(x.sum(axis=1, keepdims=True))
inputs = keras.Input((8,), name="features")
state = deq_keras.DEQ(deq_keras.layers.DenseCell(32), name="deq")(inputs)
model = keras.Model(inputs, keras.layers.Dense(1)(state))
model.compile("adam", "mse")
model.fit(x, y, epochs=20, verbose=0)

# The file contains the solver, and is checked in a process of its own. With the extra
# `serving`, `export_onnx` and `export_litert` write the same signature.
deq_keras.serving.export_saved_model(model, "served/1")

# The client. TensorFlow alone can load the folder, too; `load` adds defaults.
served = deq_keras.serving.load("served/1")
print(served)
for max_iter in (2, 4, 8, 30):
    result = served(x[:64], max_iter=max_iter)
    error = np.mean((result["outputs"] - y[:64]) ** 2)
    print(
        f"max_iter {max_iter:2}: {np.mean(result['evaluations']):4.1f} evaluations, "
        f"residual {np.mean(result['residual']):.4f}, error {error:.3f}"
    )
try:
    served(x[:64].astype(str))
except ValueError as error:
    print("refused:", str(error)[:100], "...")
