"""Tasks whose head and cell are quantized load from their files and presets."""

import keras
import numpy as np
import pytest

from deq_keras import layers, models
from tests.layers.test_quantization import quantize
from tests.regimes import slow

_RANDOM = np.random.default_rng(0)
_SOLVER = {"class_name": "FixedPointIteration", "max_iter": 2}


def _reasoner():
    cell = layers.MixerCell(8, num_blocks=1, name="cell")
    encoder = layers.BoardEmbedding(5, 8, (4, 4), name="encoder")
    backbone = models.ReasonerBackbone(
        cell, (4, 4), encoder=encoder, problem_dtype="int32", solver=_SOLVER
    )
    return models.ReasonerTagger(backbone, 5), _RANDOM.integers(0, 5, (3, 4, 4))


def _monotone():
    model = models.MonotoneClassifier(layers.MonotoneDenseCell(8), (6,), 3)
    return model, _RANDOM.normal(size=(3, 6)).astype("float32")


def _language():
    backbone = models.DEQTransformerBackbone(
        20, 8, 2, 16, weight_normalization=False, solver=_SOLVER
    )
    return models.DEQTransformerCausalLM(backbone), _RANDOM.integers(0, 20, (2, 5))


@pytest.mark.parametrize("make", [_reasoner, slow(_monotone), slow(_language)])
def test_a_quantized_task_is_near_and_loads(make, tmp_path):
    model, inputs = make()
    expected = np.asarray(model(inputs))
    assert quantize(model, "int8")
    outputs = np.asarray(model(inputs))
    assert 0 < np.linalg.norm(outputs - expected) < 0.05 * np.linalg.norm(expected)
    model.save(tmp_path / "model.keras")
    restored = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(restored(inputs), outputs)
    if hasattr(model, "save_to_preset"):
        restored.save_to_preset(tmp_path / "preset")
        restored = type(model).from_preset(str(tmp_path / "preset"))
        np.testing.assert_array_equal(restored(inputs), outputs)
