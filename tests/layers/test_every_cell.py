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
