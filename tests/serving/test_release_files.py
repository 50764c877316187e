"""Files that earlier versions wrote load with the same outputs."""

from pathlib import Path

import keras
import numpy as np
import pytest

from deq_keras import models, serving

VERSIONS = sorted((Path(__file__).parents[1] / "files").iterdir())


@pytest.fixture(params=VERSIONS, ids=lambda folder: folder.name)
def folder(request):
    return request.param


@pytest.mark.parametrize(
    "name", ["model.keras", "saved_model", "model.tflite", "model.onnx"]
)
def test_models(folder, name):
    expected = np.load(folder / "expected.npz")
    features = expected["features"]
    if name == "model.keras":
        outputs = keras.saving.load_model(folder / name).predict(features, verbose=0)
    else:
        answer = serving.load(folder / name)({"features": features})
        outputs = answer["outputs"]
        np.testing.assert_array_equal(answer["status"], 0)
    np.testing.assert_allclose(outputs, expected["outputs"], rtol=1e-4, atol=1e-5)


def test_presets(folder):
    expected = np.load(folder / "expected.npz")
    backbone = models.DEQTransformerBackbone.from_preset(str(folder / "preset"))
    states = backbone.predict({"token_ids": expected["token_ids"]}, verbose=0)
    # Rounding of another processor moves iterates within their tolerance, 1e-3.
    np.testing.assert_allclose(states, expected["states"], rtol=1e-3, atol=1e-3)
