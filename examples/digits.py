"""Classify handwritten digits by a residual block, applied until it converges."""

from pathlib import Path

import keras
import numpy as np

import deq_keras

keras.utils.set_random_seed(0)
root = Path(__file__).resolve().parents[1]
with np.load(root / "training" / "data" / "images" / "digits.npz") as file:
    images = file["images"][..., None] / 16.0  # (1797, 8, 8, 1), from 0 to 1
    labels, is_test = file["labels"], file["is_test"]

# The cell: f(z, x) = norm(relu(z + norm(conv(relu(norm(conv(z)))) + x)))
deq = deq_keras.DEQ(deq_keras.layers.ResidualBlockCell(16), name="deq")
model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
        deq,
        keras.layers.Flatten(),
        keras.layers.Dense(10),
    ]
)
model.compile(
    keras.optimizers.Adam(3e-3),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(images[~is_test], labels[~is_test], batch_size=64, epochs=8, verbose=2)

# Each sample stops when it has converged, within a budget that each call can change.
for max_iter in (1, 3, 6, 12, 30):
    with deq_keras.layers.SolveScope(model, max_iter=max_iter):
        logs = model.evaluate(
            images[is_test], labels[is_test], verbose=0, return_dict=True
        )
    print(
        f"{max_iter:2} evaluations: accuracy {logs['accuracy']:.3f}, "
        f"residual {logs['deq_residual']:.4f}"
    )
