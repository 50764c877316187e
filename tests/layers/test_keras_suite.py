"""The test suite in the wheel of Keras, on the layers of this package."""

import pytest
from keras.src.testing import TestCase

from deq_keras import layers
from tests.regimes import slow

# The suite trains with a generator, and layers without weights.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`shuffle=True`"),
    pytest.mark.filterwarnings("ignore:The model does not have any trainable weights"),
]
_SOLVER = {"class_name": "FixedPointIteration", "max_iter": 2}
VECTORS, TEXTS, IMAGES, BOARDS = (4, 6), (4, 5, 8), (4, 8, 8, 4), (4, 6, 6, 8)
ONES = [[1.0] * 8] * 8


def _transformer():
    return layers.TransformerCell(8, 2, 16)


def _segments(cell):
    return {"deq": layers.DEQ(cell, solver=_SOLVER), "length": 0}


# Layer without its own cell -> input shape and arguments.
LAYERS = {
    "Blur": (IMAGES, {"kernel": [[0.5, 1.0, 0.5]], "image_shape": IMAGES[1:]}),
    "BottleneckBlock": (IMAGES, {"filters": 4}),
    "ConvolutionUnit": (IMAGES, {"filters": 4, "kernel_size": 3}),
    "Downsampling": (IMAGES, {"factor": 2, "image_shape": IMAGES[1:]}),
    "FourierSampling": ((4, 8, 8, 2), {"mask": ONES, "image_shape": (8, 8, 2)}),
    "GroupNormalization": (IMAGES, {"groups": 2}),
    "ImageDenoiser": (IMAGES, {"filters": 4, "num_layers": 2}),
    "Inpainting": (IMAGES, {"mask": ONES, "image_shape": IMAGES[1:]}),
    "LayerNormalization": (VECTORS, {}),
    "MatrixOperator": (IMAGES, {"matrix": [[1.0] * 256], "image_shape": IMAGES[1:]}),
    "MultiscaleStem": (IMAGES, {"filters": 4, "num_downsamplings": 1}),
    "RadonTransform": (IMAGES, {"image_shape": IMAGES[1:], "num_angles": 3}),
    "SpectrallyNormalizedConv2D": (IMAGES, {"filters": 4, "kernel_size": 3}),
    "SpectrallyNormalizedDense": (VECTORS, {"units": 4}),
    "SymmetricConv2D": (IMAGES, {"filters": 4, "kernel_size": 3}),
    "VariationalDropout": (TEXTS, {"rate": 0.5}),
    "WeightNormalizedConv1D": (TEXTS, {"filters": 4, "kernel_size": 3}),
    "WeightNormalizedConv2D": (IMAGES, {"filters": 4, "kernel_size": 3}),
    "WeightNormalizedDense": (VECTORS, {"units": 4}),
}
# Function that makes a cell, and the input shape of its `DEQ`.
CELLS = {
    "AttentionCell": (lambda: layers.AttentionCell(8, 2), BOARDS),
    "AutomatonCell": (lambda: layers.AutomatonCell(4), IMAGES),
    "BoardCell": (lambda: layers.BoardCell(8, (2, 3)), BOARDS),
    "DenseCell": (lambda: layers.DenseCell(8), VECTORS),
    "MixerCell": (lambda: layers.MixerCell(8), BOARDS),
    "MonotoneConvCell": (lambda: layers.MonotoneConvCell(4), IMAGES),
    "MonotoneDenseCell": (lambda: layers.MonotoneDenseCell(8), VECTORS),
    "RecallCell": (lambda: layers.RecallCell(4), IMAGES),
    "ResidualBlockCell": (lambda: layers.ResidualBlockCell(4, groups=2), IMAGES),
    "TransformerCell": (_transformer, TEXTS),
}
# Function that makes the arguments of a layer that contains a cell.
COMPOSITES = {
    "TransformerStack": lambda: {"cells": [_transformer()], "num_layers": 2},
    "TrellisStack": lambda: {"cell": layers.TrellisCell(8), "num_layers": 2},
    "SegmentMemory": lambda: _segments(layers.TrellisCell(8)),
}


@pytest.fixture
def suite():
    suite = TestCase()
    yield suite
    suite.doCleanups()


@pytest.mark.parametrize("name", LAYERS)
def test_layer(suite, name):
    shape, kwargs = LAYERS[name]
    suite.run_layer_test(getattr(layers, name), kwargs, input_shape=shape)


@pytest.mark.parametrize(
    "name", [name if name == "DenseCell" else slow(name) for name in CELLS]
)
def test_equilibrium_layer(suite, name):
    make, shape = CELLS[name]
    # The cell has the policy of the layer, which the suite would change alone.
    suite.run_layer_test(
        layers.DEQ,
        {"cell": make(), "solver": _SOLVER},
        input_shape=shape,
        run_mixed_precision_check=False,
    )


@pytest.mark.parametrize(
    "name", ["TrellisStack", slow("TransformerStack"), slow("SegmentMemory")]
)
def test_layer_with_a_cell(suite, name):
    suite.run_layer_test(
        getattr(layers, name),
        COMPOSITES[name](),
        input_shape=TEXTS,
        run_mixed_precision_check=False,
    )
