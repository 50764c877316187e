"""A monotone network: one equilibrium for all weights, and a bound of its change."""

from pathlib import Path

import keras
import numpy as np

import deq_keras

keras.utils.set_random_seed(0)
root = Path(__file__).resolve().parents[1]
with np.load(root / "training" / "data" / "images" / "digits.npz") as file:
    images = file["images"].reshape(-1, 64).astype("float32") / 16
    labels, is_test = file["labels"], file["is_test"]

inputs = keras.Input((64,))
# W = (1 - m) I - A^T A + B - B^T. The cell brings its solver, Peaceman-Rachford
# splitting, and an implicit gradient; no penalty is needed.
deq = deq_keras.DEQ(deq_keras.layers.MonotoneDenseCell(64), name="deq")
model = keras.Model(inputs, keras.layers.Dense(10)(deq(inputs)))
model.compile(
    keras.optimizers.Adam(3e-3),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(images[~is_test], labels[~is_test], batch_size=64, epochs=10, verbose=2)
logs = model.evaluate(images[is_test], labels[is_test], verbose=0, return_dict=True)
print(f"accuracy {logs['accuracy']:.3f}, {logs['deq_evaluations']:.1f} evaluations")

# How far results are from the equilibria, and how much faster equilibria change than
# inputs: bounds for every input.
few = images[is_test][:4]
print("distances at most", deq_keras.diagnostics.certify(model, few).radius.numpy())
print("change of the state, bound:", float(deq.cell.lipschitz_bound()))

change = np.random.default_rng(0).normal(size=few.shape).astype("float32")
change *= 0.1 / np.linalg.norm(change, axis=1, keepdims=True)
before, after = deq.solve(few).value, deq.solve(few + change).value
print(
    "change of the state, measured:", np.linalg.norm(after - before, axis=1).max() / 0.1
)
