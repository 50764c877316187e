"""Writes the files of a version that later versions must load.

    python tools/write_release_files.py tests/files/0.1.0

Run it once for each release; see RELEASING.md. `tests/serving/test_release_files.py`
loads the files of all versions.
"""

import sys
from pathlib import Path

import keras
import numpy as np

import deq_keras


def main(folder):
    folder.mkdir(parents=True)
    keras.utils.set_random_seed(0)
    inputs = keras.Input((3,), name="features")
    solver = deq_keras.solvers.FixedPointIteration(60, tol=1e-6)  # In small files.
    equilibrium = deq_keras.DEQ(deq_keras.layers.DenseCell(4), solver, name="deq")
    model = keras.Model(inputs, keras.layers.Dense(2)(equilibrium(inputs)))
    features = np.random.default_rng(0).normal(size=(5, 3)).astype("float32")
    model.save(folder / "model.keras")
    deq_keras.serving.export_saved_model(model, folder / "saved_model")
    deq_keras.serving.export_litert(model, folder / "model.tflite")
    deq_keras.serving.export_onnx(model, folder / "model.onnx")

    backbone = deq_keras.models.DEQTransformerBackbone(
        vocabulary_size=20, hidden_dim=8, num_heads=2, intermediate_dim=8
    )
    ids = np.random.default_rng(1).integers(0, 20, (2, 6))
    backbone.save_to_preset(folder / "preset")
    np.savez(
        folder / "expected.npz",
        features=features,
        outputs=model.predict(features, verbose=0),
        token_ids=ids,
        states=backbone.predict({"token_ids": ids}, verbose=0),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
