"""Find the cheapest solver and budget that keep the predictions of a classifier."""

from pathlib import Path

import keras
import numpy as np

import deq_keras

keras.utils.set_random_seed(0)
root = Path(__file__).resolve().parents[1]
with np.load(root / "training" / "data" / "images" / "digits.npz") as file:
    images = file["images"].reshape(-1, 64).astype("float32") / 16
    labels, is_test = file["labels"], file["is_test"]

model = keras.Sequential(
    [
        keras.Input((64,)),
        deq_keras.DEQ(deq_keras.layers.DenseCell(64), name="deq"),
        keras.layers.Dense(10),
    ]
)
model.compile(
    keras.optimizers.Adam(3e-3),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(images[~is_test], labels[~is_test], batch_size=64, epochs=8, verbose=2)


def evaluate():
    logs = model.evaluate(images[is_test], labels[is_test], verbose=0, return_dict=True)
    return f"accuracy {logs['accuracy']:.3f}, {logs['deq_evaluations']:.1f} evaluations"


# At most 2 % of the predictions may differ from a tight solve, with 95 % confidence. No
# labels are needed. The second half of the data confirms the promise.
tuning = deq_keras.tuning.tune(
    model,
    images[~is_test],
    promise=0.02,
    candidates=[
        deq_keras.solvers.FixedPointIteration(30),
        deq_keras.solvers.Anderson(30),
    ],
)
print(tuning)
print("before:", evaluate())
if tuning.is_confirmed:
    tuning.apply(model)
    model.compile(loss=model.loss, metrics=["accuracy"])
    print("after: ", evaluate())
