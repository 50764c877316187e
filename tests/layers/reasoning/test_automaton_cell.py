import numpy as np
import pytest

from deq_keras.layers import AutomatonCell
from tests.layers.formulas import convolve, normal, randomize, relu


def _cell(**kwargs):
    """A cell like a trained one: its last weights differ from zero."""
    cell = AutomatonCell(6, **kwargs)
    cell.build((None,) * (cell.rank + 1) + (3,))
    randomize(cell)
    return cell


@pytest.mark.parametrize("rank", [1, 2])
def test_formula(rank):
    cell = _cell(rank=rank, step=0.3, leak=0.25, dtype="float64")
    shape = (2, 5, 4)[: rank + 1]
    inputs, state = (normal((*shape, size)) for size in (3, 6))
    first, *others = (weight.numpy() for weight in cell.weights)
    inner1, inner2, inner3, inner4 = (kernel.reshape(6, 6) for kernel in others)
    hidden = relu(convolve(np.concatenate([state, inputs], axis=-1), first))
    hidden = relu(hidden + relu(hidden @ inner1) @ inner2)
    expected = np.tanh(0.75 * state + 0.3 * relu(hidden @ inner3) @ inner4)
    np.testing.assert_allclose(cell(state, cell.inject(inputs)), expected, atol=1e-12)


def test_an_untrained_cell_forgets():
    cell = AutomatonCell(6, leak=0.25)
    state, inputs = (normal((2, 6, 5, size)).astype("float32") for size in (6, 3))
    after = cell(state, cell.inject(inputs))
    np.testing.assert_allclose(after, np.tanh(0.75 * state), atol=1e-6)
