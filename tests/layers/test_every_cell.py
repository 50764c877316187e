"""DEQ layers of every shipped cell and of a nest pass the checks of a Keras layer."""

import keras
import numpy as np
import pytest

from deq_keras import layers
from deq_keras.solvers import FixedPointIteration
from tests import harness
from tests.layers import test_quantization
from tests.layers.cells import TwoScaleCell

VECTORS = np.random.default_rng(0).normal(size=(2, 7, 4)).astype("float32")
PAIR = dict(zip("xy", VECTORS))
CELLS = {**test_quantization.CELLS, "nest": (lambda: TwoScaleCell(3), PAIR)}


@pytest.mark.slow
@pytest.mark.parametrize("name", CELLS)
def test_is_a_keras_layer(name, tmp_path):
    make_cell, inputs = CELLS[name]

    def make(dtype=None):
        keras.utils.set_random_seed(1)
        keras.config.set_dtype_policy(dtype or "float32")
        # Far from an equilibrium, regimes agree for a few evaluations only.
        solver = FixedPointIteration(max_iter=2, tol=None)
        return layers.DEQ(make_cell(), solver, "phantom", "jacobian", seed=1)

    harness.check_layer(make, inputs, tmp_path)


@pytest.mark.parametrize(
    "make, dtype",
    [
        (lambda: layers.MonotoneConvCell(3), "uint8"),
        (lambda: layers.MonotoneMultiscaleCell((3, 2)), "uint8"),
        (lambda: layers.RecallCell(3), "float32"),
        (lambda: layers.RecallCell(3, rank=1), "float32"),
        (lambda: layers.AutomatonCell(3), "float32"),
    ],
)
def test_images_have_their_channels_last(make, dtype):
    """Also if the channels are first in other layers of Keras."""
    cell = make()
    shape = (2, 6, 2) if getattr(cell, "rank", 2) == 1 else (2, 6, 4, 2)
    inputs = np.random.default_rng(0).integers(0, 5, shape).astype(dtype)
    expected = layers.DEQ(cell)(inputs)
    before = keras.config.image_data_format()
    keras.config.set_image_data_format("channels_first")
    try:
        other = layers.DEQ(make())
        other(inputs)
        other.cell.set_weights(cell.get_weights())
        found = other(inputs)
    finally:
        keras.config.set_image_data_format(before)
    for one, two in zip(*map(keras.tree.flatten, (found, expected)), strict=True):
        assert one.dtype == "float32"
        np.testing.assert_allclose(one, two, atol=1e-5)
