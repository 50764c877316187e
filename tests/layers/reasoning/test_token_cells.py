"""The cells that mix tokens: perceptrons, or attention, on a sphere."""

import numpy as np
import pytest

from deq_keras.layers import DEQ, AttentionCell, MixerCell
from deq_keras.solvers import FixedPointIteration
from tests.layers.formulas import normal

SHAPE = (2, 2, 3, 8)


def _cell(cell_class, **kwargs):
    cell = cell_class(8, **kwargs)
    cell.build((None, *SHAPE[1:]))
    return cell


def _sphere(x):
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-5)


def _gated(x, layer):
    inner, outer = (weight.numpy() for weight in layer.weights)
    gate, values = np.split(x @ inner, 2, axis=-1)
    return (gate / (1 + np.exp(-gate)) * values) @ outer


def _attended(x, layer):
    query, key, value, output = (weight.numpy() for weight in layer.weights)
    q, k, v = (np.einsum("btu,uhd->bhtd", x, w) for w in (query, key, value))
    scores = np.exp(np.einsum("bhtd,bhsd->bhts", q, k) / np.sqrt(q.shape[-1]))
    weights = scores / scores.sum(axis=-1, keepdims=True)
    return np.einsum("bhts,bhsd,hdu->btu", weights, v, output)


def _mixed(x, layer):
    return _gated(x.swapaxes(1, 2), layer).swapaxes(1, 2)


@pytest.mark.parametrize(
    "cell_class, mixed", [(MixerCell, _mixed), (AttentionCell, _attended)]
)
def test_formula(cell_class, mixed):
    cell = _cell(cell_class, num_blocks=2, dtype="float64")
    inputs, state = normal(SHAPE), normal(SHAPE, seed=1)
    tokens = (state + inputs).reshape(2, 6, 8)
    for mixing, perceptron in zip(cell.mixings, cell.perceptrons, strict=True):
        tokens = _sphere(tokens + mixed(tokens, mixing))
        tokens = _sphere(tokens + _gated(tokens, perceptron))
    actual = cell(state, cell.inject(inputs))
    np.testing.assert_allclose(actual, tokens.reshape(SHAPE), atol=1e-6)
    np.testing.assert_allclose(np.mean(np.square(actual), axis=-1), 1.0, atol=1e-3)


def test_padding_of_a_mixer_does_not_change_a_result():
    deq = DEQ(_cell(MixerCell), FixedPointIteration(max_iter=5, tol=None))
    mask = np.ones(SHAPE[:-1], bool)
    mask[0, 1] = False
    inputs = normal(SHAPE).astype("float32")
    other = np.where(mask[..., None], inputs, 100.0).astype("float32")
    value = deq.solve(inputs, mask=mask).value.numpy()
    np.testing.assert_allclose(deq.solve(other, mask=mask).value, value, atol=1e-5)
    np.testing.assert_array_equal(value[~mask], 0.0)
    assert np.abs(value - deq.solve(inputs).value)[0, 0].max() > 1e-2
