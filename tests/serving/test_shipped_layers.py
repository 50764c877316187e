"""Every shipped cell, layer and operator has an ONNX and a LiteRT file."""

import functools

import keras
import numpy as np
import pytest
from keras import tree

from deq_keras import layers, serving, solvers
from tests.layers.test_keras_suite import LAYERS
from tests.layers.test_quantization import CELLS, keras_inputs
from tests.regimes import slow

RANDOM = np.random.default_rng(0)
EXPORTS = {
    "litert": (serving.export_litert, ".tflite"),
    "onnx": (serving.export_onnx, ".onnx"),
}


def _normal(*shape):
    return RANDOM.normal(size=shape).astype("float32")


TEXTS, IMAGES = _normal(3, 5, 8), _normal(3, 8, 8, 4)
TOKENS = RANDOM.integers(0, 50, size=(3, 5)).astype("int32")
MAPS = [_normal(3, 8, 8, 8), _normal(3, 4, 4, 16)]
MASK = RANDOM.uniform(size=(8, 8)) < 0.5
OPERATORS = {
    "circular_blur": lambda: layers.Blur(np.ones((3, 3)) / 9, (8, 8, 4)),
    "zero_blur": lambda: layers.Blur(np.ones((3, 3)) / 9, (8, 8, 4), boundary="zero"),
    "inpainting": lambda: layers.Inpainting(MASK, (8, 8, 4)),
    "downsampling": lambda: layers.Downsampling(2, (8, 8, 4)),
    "fourier": lambda: layers.FourierSampling(MASK, (8, 8, 2)),
    "matrix": lambda: layers.MatrixOperator(_normal(20, 256) / 16, (8, 8, 4)),
    "radon": lambda: layers.RadonTransform((8, 8, 4), 4),
}
LIPSCHITZ = {
    "SpectrallyNormalizedConv2D": lambda: layers.SpectrallyNormalizedConv2D(
        4, 3, padding="same", max_norm=0.8, activation="tanh"
    ),
    "WeightNormalizedConv2D": lambda: layers.WeightNormalizedConv2D(
        4, 3, padding="same", activation="tanh", kernel_initializer=_small
    ),
    "GroupNormalization": lambda: keras.Sequential(
        [keras.layers.Conv2D(4, 3, padding="same"), layers.GroupNormalization(2)]
    ),
}


def _small(shape, dtype=None):
    return keras.random.normal(shape, stddev=0.05, dtype=dtype)


def _restoration(cls, operator, **denoiser):
    operator = OPERATORS[operator]()
    cell = cls(operator, layers.ImageDenoiser(4, 2, **denoiser))
    return cell, np.asarray(operator(IMAGES[..., : operator.image_shape[-1]]))


def _first(leaf):
    return leaf[:3]


def _embedding():
    return layers.AdaptiveEmbedding(50, 8)


class Attention(keras.layers.Layer):
    """The layer as `TransformerCell` calls it."""

    def __init__(self):
        super().__init__()
        self.attention = layers.RelativeAttention(2)

    def build(self, shape):
        self.attention.build(shape)

    def call(self, inputs):
        prepared = self.attention.prepare(keras.ops.tile(inputs, [1, 1, 3]))
        return self.attention(inputs, prepared)


# Name -> function that returns a cell and the inputs of its DEQ layer.
ALL_CELLS = {
    **{
        name: lambda pair=pair: (pair[0](), tree.map_structure(_first, pair[1]))
        for name, pair in CELLS.items()
    },
    **{
        f"ProximalGradientCell_{name}": functools.partial(
            _restoration, layers.ProximalGradientCell, name
        )
        for name in OPERATORS
    },
    **{
        f"HalfQuadraticCell_{name}": functools.partial(
            _restoration, layers.HalfQuadraticCell, name
        )
        for name in OPERATORS
        if name not in ("zero_blur", "radon")
    },
    "ImageDenoiser_max_norm": functools.partial(
        _restoration, layers.ProximalGradientCell, "circular_blur", max_norm=0.6
    ),
    **{
        f"cell_from_{name}": lambda make=make: (layers.cell_from(make()), IMAGES)
        for name, make in LIPSCHITZ.items()
    },
    "cell_from_SpectrallyNormalizedDense": lambda: (
        layers.cell_from(layers.SpectrallyNormalizedDense(8, activation="tanh")),
        TEXTS,
    ),
    "cell_from_GRUCell": lambda: (
        layers.cell_from(keras.layers.GRUCell(8)),
        TEXTS[:, 0],
    ),
}
# Name -> function that returns a layer and its inputs.
ALL_LAYERS = {
    **{
        name: lambda name=name, pair=pair: (
            getattr(layers, name)(**pair[1]),
            _normal(3, *pair[0][1:]),
        )
        for name, pair in LAYERS.items()
    },
    "AdaptiveEmbedding": lambda: (
        layers.AdaptiveEmbedding(50, 8, cutoffs=(10, 20), div_val=2),
        TOKENS,
    ),
    "AdaptiveSoftmax": lambda: (layers.AdaptiveSoftmax(_embedding()), TEXTS),
    "MixtureSoftmax": lambda: (layers.MixtureSoftmax(_embedding(), 2), TEXTS),
    "BoardEmbedding": lambda: (
        layers.BoardEmbedding(7, 8, (6, 6), (2, 3)),
        RANDOM.integers(0, 7, size=(3, 6, 6)).astype("int32"),
    ),
    "MultiscaleFusion": lambda: (layers.MultiscaleFusion((8, 16)), MAPS),
    "MultiscaleClassificationHead": lambda: (
        layers.MultiscaleClassificationHead(10, (4, 8), 32),
        MAPS,
    ),
    "MultiscaleSegmentationHead": lambda: (
        layers.MultiscaleSegmentationHead(5, scale=2),
        MAPS,
    ),
    "RelativeAttention": lambda: (Attention(), TEXTS),
    "SegmentMemory": lambda: (
        layers.SegmentMemory(layers.DEQ(layers.TransformerCell(8, 2, 16)), length=4),
        TEXTS,
    ),
    "TransformerStack": lambda: (
        layers.TransformerStack([layers.TransformerXLLayer(8, 2, 16)], 2),
        TEXTS,
    ),
    "TransformerXLCell": lambda: (
        layers.DEQ(layers.TransformerXLCell(8, 2, 16)),
        TEXTS,
    ),
    "TransformerXLLayer": lambda: (
        layers.TransformerStack(
            [layers.TransformerXLLayer(8, 2, 16, normalize_first=True)], 2
        ),
        TEXTS,
    ),
    "TrellisStack": lambda: (layers.TrellisStack(layers.TrellisCell(8), 3), TEXTS),
}
FAST = {"DenseCell": "onnx", "SymmetricConv2D": "litert"}


def test_every_layer_is_exported():
    shipped = {
        name
        for name in layers.__all__
        if isinstance(getattr(layers, name), type)
        and issubclass(getattr(layers, name), keras.layers.Layer)
    }
    bases = {"DEQ", "EquilibriumCell", "LinearOperator", "MonotoneCell"}
    assert shipped - bases <= {*ALL_CELLS, *ALL_LAYERS}


@pytest.mark.parametrize(
    "name, target",
    [
        (name, target) if FAST.get(name) == target else slow(name, target)
        for name in {**ALL_CELLS, **ALL_LAYERS}
        for target in EXPORTS
    ],
)
def test_file_equals_predict(name, target, tmp_path):
    keras.utils.set_random_seed(0)
    if name in ALL_CELLS:
        cell, inputs = ALL_CELLS[name]()
        layer = layers.DEQ(cell, solvers.FixedPointIteration(6))
    else:
        layer, inputs = ALL_LAYERS[name]()
    symbolic = keras_inputs(inputs)
    outputs = layer(symbolic)
    model = keras.Model(symbolic, outputs)
    export, suffix = EXPORTS[target]
    path = tmp_path / f"model{suffix}"
    with pytest.MonkeyPatch.context() as patch:
        # Other tests are of the check. It would take most of the time.
        patch.setattr(serving.check, "check_export", lambda *_: 0.0)
        export(model, path, samples=inputs)
    request = inputs
    if isinstance(inputs, list):
        request = {f"inputs_{i}": x for i, x in enumerate(inputs)}
    answer = serving.load(path)(request)
    expected = model.predict(inputs, verbose=0)
    if not isinstance(expected, dict):
        expected = dict(zip(answer, tree.flatten(expected)))
    for output, array in expected.items():
        scale = max(1.0, np.abs(array).max())
        np.testing.assert_allclose(answer[output], array, atol=1e-4 * scale)
