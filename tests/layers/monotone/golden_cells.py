"""The monotone networks whose values the reference gave."""

import numpy as np
import tensorflow as tf

from deq_keras.layers import (
    MonotoneConvCell,
    MonotoneDenseCell,
    MonotoneMultiscaleCell,
)
from tests.golden.arrays import fill, load


class GoldenNetwork:
    """A cell with the weights of a golden network, and what belongs to it.

    Args:
        name: `"fc"` or `"conv"`.
    """

    def __init__(self, name):
        prefix = f"{name}/"
        self.arrays = {
            key.removeprefix(prefix).replace("mon.linear_module.", ""): array
            for key, array in load("monotone").items()
            if key.startswith(prefix)
        }
        make = {"fc": _dense, "conv": _convolutional}[name]
        self.cell, self.variables = make(self.arrays)
        self.inputs = self.state("x")

    def state(self, name):
        """Returns an array of the state, or of the inputs, in Keras' layout."""
        return tf.constant(_channels_last(self.arrays[name]))

    def loss(self, state):
        """The function of an equilibrium that was differentiated."""
        if state.shape.rank == 4:
            pooled = tf.nn.avg_pool2d(state, 4, 4, "VALID")
            state = tf.reshape(tf.transpose(pooled, (0, 3, 1, 2)), (state.shape[0], -1))
        weights, bias = self.arrays["param/Wout.weight"], self.arrays["param/Wout.bias"]
        logits = state @ weights.T + bias
        return tf.reduce_sum(logits * self.arrays["cotangent"])

    def gradients(self):
        """Returns what the reference gave for each of `variables`."""
        golden = [_as_keras(self.arrays[f"grad/{name}"]) for name in self.variables]
        if "g" in self.variables:  # Here a scale, whose square it is.
            g = self.arrays["param/g"]
            golden[-2] = golden[-2] * 2 * np.sqrt(g)
        return golden


def _dense(arrays):
    cell = MonotoneDenseCell(6, m=0.5, dtype="float64")
    cell.build((None, 7))
    variables = {
        "U.weight": cell.projection.kernel,
        "U.bias": cell.projection.bias,
        "A.weight": cell.symmetric,
        "B.weight": cell.skew,
    }
    for name, variable in variables.items():
        array = arrays[f"param/{name}"]
        variable.assign(array.T if name == "U.weight" else array)
    arrays["grad/U.weight"] = arrays["grad/U.weight"].T
    return cell, variables


def _convolutional(arrays):
    cell = MonotoneConvCell(3, dtype="float64")
    cell.build((None, 8, 8, 2))
    tier = cell.tier
    variables = {
        "U.weight": cell.projection.kernel,
        "U.bias": cell.projection.bias,
        "A.weight": tier.symmetric.direction,
        "B.weight": tier.skew.direction,
        "g": tier.symmetric.scale,
        "h": tier.skew.scale,
    }
    for name, variable in variables.items():
        array = _as_keras(arrays[f"param/{name}"])
        variable.assign(np.sqrt(array) if name == "g" else array)
    return cell, variables


def multiscale():
    """Returns the three tiers of the reference sheet, whose weights are `fill`ed."""
    filters, k = (2, 3, 4), iter(range(20))

    def filled(*shape):
        return _as_keras(fill(shape, next(k), 0.5))

    def scale():
        return 1 + 0.05 * next(k)

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


def multiscale_state():
    """Returns the state of the reference sheet, `(10, 6, 4)` positions a side."""
    return [
        tf.constant(_channels_last(fill((2, channels, side, side), 70 + i, 1.0)))
        for i, (channels, side) in enumerate(((2, 10), (3, 6), (4, 4)))
    ]


def _channels_last(array):
    return array.transpose(0, 2, 3, 1) if array.ndim == 4 else array


def _as_keras(array):
    return array.transpose(2, 3, 1, 0) if array.ndim == 4 else array
