"""Quantized models: near the models of floats, and the same once they are loaded."""

import warnings

import keras
import numpy as np
import pytest
from keras import tree
from keras.quantizers import Int8QuantizationConfig

from deq_keras import layers
from tests.layers.cells import TanhCell
from tests.regimes import slow

_RANDOM = np.random.default_rng(0)
# Two steps: quantization errors are small per step, and grow where f expands.
_SOLVER = {"class_name": "FixedPointIteration", "max_iter": 2}


def _draw(*shape):
    return _RANDOM.normal(size=shape).astype("float32")


VECTORS, TEXTS = _draw(4, 6), _draw(4, 5, 8)
GRAPHS = {"features": TEXTS, "edges": np.tile([[0, 1], [1, 2], [3, 1]], (4, 1, 1))}
IMAGES, BOARDS = _draw(4, 8, 8, 4), _draw(4, 6, 6, 8)


def _transformer(**kwargs):
    kwargs = {"weight_normalization": False, **kwargs}
    return layers.TransformerCell(8, 2, 16, seed=0, **kwargs)


def _sequential():
    return keras.Sequential(
        [keras.layers.Dense(16, "relu"), keras.layers.Dense(8, "tanh")]
    )


def _reconstruction(cls):
    operator = layers.Blur([[0.25, 0.5, 0.25]], (8, 8, 4))
    return cls(operator, layers.ImageDenoiser(4, 2))


# Name -> function that makes a cell, and inputs. Keras quantizes no convolutions.
CELLS = {
    "AttentionCell": (lambda: layers.AttentionCell(8, 2), BOARDS),
    "AutomatonCell": (lambda: layers.AutomatonCell(4), IMAGES),
    "BoardCell": (lambda: layers.BoardCell(8, (2, 3)), BOARDS),
    "DenseCell": (lambda: layers.DenseCell(8, seed=0), VECTORS),
    "DenseCell_normalized": (
        lambda: layers.DenseCell(8, weight_normalization=True, seed=0),
        VECTORS,
    ),
    "GraphCell": (lambda: layers.GraphCell(8, seed=0), GRAPHS),
    "HalfQuadraticCell": (lambda: _reconstruction(layers.HalfQuadraticCell), IMAGES),
    "MixerCell": (lambda: layers.MixerCell(8), BOARDS),
    "MonotoneConvCell": (lambda: layers.MonotoneConvCell(4), IMAGES),
    "MonotoneDenseCell": (lambda: layers.MonotoneDenseCell(8), VECTORS),
    "MonotoneMultiscaleCell": (lambda: layers.MonotoneMultiscaleCell((4, 4)), IMAGES),
    "MultiscaleCell": (lambda: layers.MultiscaleCell((4, 8), groups=2), IMAGES),
    "ProximalGradientCell": (
        lambda: _reconstruction(layers.ProximalGradientCell),
        IMAGES,
    ),
    "RecallCell": (lambda: layers.RecallCell(4), IMAGES),
    "ResidualBlockCell": (lambda: layers.ResidualBlockCell(4, groups=2), IMAGES),
    "TanhCell": (lambda: TanhCell(8), VECTORS),
    "TransformerCell": (_transformer, TEXTS),
    "TransformerCell_normalized": (
        lambda: _transformer(weight_normalization=True, normalize_first=True),
        TEXTS,
    ),
    "TransformerXLCell": (lambda: layers.TransformerXLCell(8, 2, 16, seed=0), TEXTS),
    "cell_from": (lambda: layers.cell_from(_sequential()), VECTORS),
    "TrellisCell": (lambda: layers.TrellisCell(8, weight_normalization=False), TEXTS),
}
OF_EACH_KIND = ["cell_from", "DenseCell_normalized", "MultiscaleCell"]


def keras_inputs(inputs):
    """Returns a `keras.Input` for each array of a nest."""
    if isinstance(inputs, dict):
        return {
            name: keras.Input(x.shape[1:], dtype=str(x.dtype), name=name)
            for name, x in inputs.items()
        }
    return tree.map_structure(
        lambda x: keras.Input(x.shape[1:], dtype=str(x.dtype)), inputs
    )


def _model(name):
    keras.utils.set_random_seed(0)
    make, inputs = CELLS[name]
    symbolic = keras_inputs(inputs)
    deq = layers.DEQ(make(), solver=_SOLVER, name="deq")
    return keras.Model(symbolic, deq(symbolic)), inputs


def quantize(model, *arguments, **kwargs):
    """Returns whether Keras quantized a layer of the model."""
    with warnings.catch_warnings():
        # Keras warns of each layer that it leaves as it is.
        warnings.simplefilter("ignore")
        model.quantize(*arguments, **kwargs)
    return any(layer.quantization_mode for layer in model._flatten_layers())


def _outputs(model, inputs):
    return np.concatenate([np.ravel(x) for x in tree.flatten(model(inputs))])


def _reloaded(model, path):
    model.save(path)
    return keras.saving.load_model(path)


def _relative_error(actual, expected):
    return np.linalg.norm(actual - expected) / np.linalg.norm(expected)


def test_every_cell_is_tested():
    cells = {
        name
        for name in layers.__all__
        if isinstance(getattr(layers, name), type)
        and issubclass(getattr(layers, name), layers.EquilibriumCell)
    }
    assert cells - {"EquilibriumCell", "MonotoneCell"} <= set(CELLS)


@pytest.mark.parametrize(
    "name, mode, tolerance",
    [
        *(slow(name, "int8", 0.05) for name in CELLS if name not in OF_EACH_KIND),
        *((name, "int8", 0.05) for name in OF_EACH_KIND),
        ("MonotoneDenseCell", "int4", 0.3),
        ("DenseCell", "float8", 0.15),
    ],
)
def test_quantized_model_is_near_and_is_saved(name, mode, tolerance, tmp_path):
    model, inputs = _model(name)
    expected = _outputs(model, inputs)
    is_quantized = quantize(model, mode)
    outputs = _outputs(model, inputs)
    # Fourier transforms round in another way in each function.
    close = {"rtol": 1e-4, "atol": 1e-6}
    if not is_quantized:
        np.testing.assert_allclose(outputs, expected, **close)
        return
    assert 0 < _relative_error(outputs, expected) < tolerance
    restored = _reloaded(model, tmp_path / "model.keras")
    np.testing.assert_allclose(_outputs(restored, inputs), outputs, **close)
    again = _reloaded(restored, tmp_path / "again.keras")
    np.testing.assert_allclose(_outputs(again, inputs), outputs, **close)


@pytest.mark.parametrize("name", [slow("RecallCell"), "TransformerCell"])
def test_low_rank_updates_reach_the_output(name, tmp_path):
    model, inputs = _model(name)
    before = _outputs(model, inputs)
    for layer in list(model._flatten_layers()):
        if hasattr(layer, "enable_lora"):
            layer.enable_lora(2)
    np.testing.assert_array_equal(_outputs(model, inputs), before)
    for weight in model.trainable_weights:
        if weight.name == "lora_kernel_b":
            weight.assign(0.1 * np.ones(weight.shape))
    outputs = _outputs(model, inputs)
    assert _relative_error(outputs, before) > 0.01
    restored = _reloaded(model, tmp_path / "model.keras")
    np.testing.assert_allclose(_outputs(restored, inputs), outputs, atol=1e-5)


def test_lipschitz_bound_is_that_of_the_quantized_weights():
    model, _ = _model("MonotoneDenseCell")
    cell = model.get_layer("deq").cell
    expected = cell.lipschitz_bound()
    assert quantize(model, "int8")
    assert cell.lipschitz_bound() == pytest.approx(expected, rel=0.02)


def test_some_layers_may_stay_floats(tmp_path):
    model, inputs = _model("TransformerCell")
    assert quantize(model, "int8", filters="expansion|contraction")
    restored = _reloaded(model, tmp_path / "model.keras")
    np.testing.assert_array_equal(_outputs(restored, inputs), _outputs(model, inputs))


def test_sublayers_of_equal_names_raise_when_saved(tmp_path):
    model, _ = _model("TanhCell")  # Two layers with automatic names.
    recurrent = model.get_layer("deq").cell.recurrent
    assert quantize(model, "int8", filters=lambda layer: layer is recurrent)
    with pytest.raises(ValueError, match="`name`"):
        model.save(tmp_path / "model.keras")


def test_quantizer_that_files_lose_raises_when_saved(tmp_path):
    model, _ = _model("DenseCell")
    assert quantize(model, config=Int8QuantizationConfig(activation_quantizer=None))
    with pytest.raises(ValueError, match="mode"):
        model.save(tmp_path / "model.keras")
