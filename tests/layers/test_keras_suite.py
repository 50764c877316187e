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
VECTORS, TEXTS, IMAGES = (4, 6), (4, 5, 8), (4, 8, 8, 4)
ONES = [[1.0] * 8] * 8


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
# A layer of each kind. Tests of the layers check the others.
OF_EACH_KIND = {
    "Blur",
    "ConvolutionUnit",
    "ImageDenoiser",
    "LayerNormalization",
    "MultiscaleStem",
    "SpectrallyNormalizedConv2D",
    "VariationalDropout",
    "WeightNormalizedConv1D",
}


@pytest.fixture
def suite():
    suite = TestCase()
    yield suite
    suite.doCleanups()


@pytest.mark.parametrize(
    "name", [name if name in OF_EACH_KIND else slow(name) for name in LAYERS]
)
def test_layer(suite, name):
    shape, kwargs = LAYERS[name]
    suite.run_layer_test(getattr(layers, name), kwargs, input_shape=shape)


@pytest.mark.parametrize(
    "cls, arguments, input_shape",
    [
        (layers.DEQ, {"cell": layers.DenseCell(8), "solver": _SOLVER}, VECTORS),
        (layers.TrellisStack, {"cell": layers.TrellisCell(8), "num_layers": 2}, TEXTS),
    ],
)
def test_layer_with_a_cell(suite, cls, arguments, input_shape):
    # The cell has the policy of the layer, which the suite would change alone.
    suite.run_layer_test(
        cls, arguments, input_shape=input_shape, run_mixed_precision_check=False
    )
