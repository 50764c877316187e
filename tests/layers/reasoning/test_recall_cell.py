import numpy as np
import pytest

from deq_keras.layers import RecallCell
from tests.layers.formulas import convolve, normal, relu

ACTIVATIONS = {
    "relu6": lambda x: np.clip(x, 0, 6),
    "relu": relu,
    "tanh": np.tanh,
    "sphere": lambda x: x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-5),
}


def _cell(**kwargs):
    cell = RecallCell(6, **kwargs)
    cell.build((None,) * (cell.rank + 1) + (3,))
    return cell


@pytest.mark.parametrize(
    "rank, activation", list(zip([1, 2, 1, 2], ACTIVATIONS, strict=True))
)
def test_formula(rank, activation):
    cell = _cell(rank=rank, activation=activation, dtype="float64")
    inputs, state = (normal((2, 5, 4)[: rank + 1] + (size,)) for size in (3, 6))
    kernels = [weight.numpy() for weight in cell.weights]
    hidden = relu(convolve(np.concatenate([state, inputs], axis=-1), kernels[0]))
    inner = relu(convolve(hidden, kernels[1]))
    hidden = relu(hidden + convolve(inner, kernels[2]))
    inner = relu(convolve(hidden, kernels[3]))
    expected = ACTIVATIONS[activation](hidden + convolve(inner, kernels[4]))
    actual = cell(state, cell.inject(inputs))
    np.testing.assert_allclose(actual, expected, atol=1e-12)
