"""The operators of monotone cells against values of locuslab/monotone_op_net."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras.converters.locuslab import load_monotone_network
from deq_keras.core.linearization import linearize
from deq_keras.layers import MonotoneMultiscaleCell
from tests.golden.arrays import fill, part

STRONG_MONOTONICITY = {"fc": 0.5, "conv": 1.0}


def _channels_last(array):
    return array.transpose(0, 2, 3, 1) if array.ndim == 4 else array


def _as_keras(kernel):
    return kernel.transpose(2, 3, 1, 0) if kernel.ndim == 4 else kernel


def _golden(name):
    """Returns a cell with the weights of a golden network, and its arrays."""
    weights, m = part("monotone", f"{name}/param/"), STRONG_MONOTONICITY[name]
    model = load_monotone_network(weights, m, dtype="float64")
    return model.deq.cell, part("monotone", f"{name}/")


def _state(arrays, name):
    return tf.constant(_channels_last(arrays[name]))


def _transposed_product(cell, operator, state):
    return linearize(lambda z: cell.linear(z, operator), state).vjp(state)


@pytest.mark.parametrize("name", STRONG_MONOTONICITY)
def test_operator(name):
    cell, arrays = _golden(name)
    operator = cell.inject(_state(arrays, "x"))["operator"]
    probe = _state(arrays, "probe0")
    product = cell.linear(probe, operator)
    np.testing.assert_allclose(product, _state(arrays, "W_probe0"), atol=1e-12)
    transposed = _transposed_product(cell, operator, probe)
    np.testing.assert_allclose(transposed, _state(arrays, "WT_probe0"), atol=1e-12)


def _multiscale_cell():
    """The three tiers of the reference sheet, whose weights are `fill`ed."""
    filters, index = (2, 3, 4), iter(range(20))

    def filled(*shape):
        return _as_keras(fill(shape, next(index), 0.5))

    def scale():
        return 1 + 0.05 * next(index)

    cell = MonotoneMultiscaleCell(filters, dtype="float64")
    cell.build((None, 8, 8, 2))
    kernel, bias = filled(2, 2, 3, 3), filled(2)
    cell.projection.set_weights([kernel, bias])
    tiers, coarser = cell.tiers, list(zip(cell.tiers, filters, filters[1:]))
    for name in ("symmetric", "skew"):
        for tier, c in zip(tiers, filters):
            getattr(tier, name).direction.assign(filled(c, c, 3, 3))
    for tier, c, d in coarser:
        tier.down.direction.assign(filled(d, c, 3, 3))
    for tier in tiers:
        tier.symmetric.scale.assign(np.sqrt(scale()))
    for tier, *_ in coarser:
        tier.down.scale.assign(np.sqrt(scale()))
    for tier in tiers:
        tier.skew.scale.assign(scale())
    return cell


def test_operator_of_tiers():
    cell = _multiscale_cell()
    state = [  # With the padding, (10, 6, 4) positions a side.
        tf.constant(_channels_last(fill((2, channels, side, side), 70 + i, 1.0)))
        for i, (channels, side) in enumerate(((2, 10), (3, 6), (4, 4)))
    ]
    operator = cell.inject(tf.zeros((2, 8, 8, 2), tf.float64))["operator"]
    product = cell.linear(state, operator)
    squares = [np.sum(np.square(leaf)) for leaf in product]
    entries = [leaf[0, 1, 1, 1].numpy() for leaf in product]
    np.testing.assert_allclose(squares, [1163.7009122, 409.1770541, 109.3526606], 1e-9)
    np.testing.assert_allclose(entries, [-1.2561721398, 5.1525091180, 0.3677197795])
    transposed = _transposed_product(cell, operator, state)
    squares = [np.sum(np.square(leaf)) for leaf in transposed]
    np.testing.assert_allclose(squares, [1323.5333215, 430.4180397, 91.5138046], 1e-9)
