"""The cell of the task on a graph."""

import keras
import numpy as np
from keras import ops

import deq_keras


@keras.saving.register_keras_serializable("deq_keras_training")
class MessagePassingCell(deq_keras.layers.EquilibriumCell):
    """Cell in which every node of a graph hears the mean of its neighbors.

        f(z, x) = tanh(M z W + x U + b)

    with M the adjacency matrix, each row divided by its sum.

    Args:
        units: int >= 1. Size of the state at a node.
        adjacency: nested list or array `(nodes, nodes)` of numbers >= 0, the weights of
            the edges.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        state: z, tensor `(batch, nodes, units)`.
        injection: x U + b, tensor `(batch, nodes, units)`.

    Input shape:
        Of `inject`: `(batch, nodes, features)`.

    Output shape:
        `(batch, nodes, units)`.

    Raises:
        ValueError: if `adjacency` is not square.

    Example:

    >>> equilibrium = deq_keras.layers.DEQ(MessagePassingCell(8, [[0, 1], [1, 0]]))
    >>> equilibrium(keras.ops.ones((3, 2, 5))).shape
    TensorShape([3, 2, 8])
    """

    def __init__(self, units, adjacency, **kwargs):
        super().__init__(**kwargs)
        adjacency = np.asarray(adjacency, "float32")
        if adjacency.ndim != 2 or adjacency.shape[0] != adjacency.shape[1]:
            raise ValueError(
                "`adjacency` must be a square matrix. Received: adjacency of shape "
                f"{adjacency.shape}."
            )
        self.units = units
        self.adjacency = adjacency
        sums = adjacency.sum(axis=1, keepdims=True)
        # A node without neighbors hears nothing.
        self._mixing = adjacency / np.where(sums > 0, sums, 1)
        self.injection_layer = keras.layers.Dense(
            units, name="injection", dtype=self.dtype_policy
        )
        self.message = keras.layers.Dense(
            units, use_bias=False, name="message", dtype=self.dtype_policy
        )

    def build(self, inputs_shape):
        self.injection_layer.build(inputs_shape)
        self.message.build((*inputs_shape[:-1], self.units))

    def inject(self, inputs, training=False):
        """Returns x U + b of the inputs x."""
        del training
        if not self.built:
            self.build(tuple(inputs.shape))
        return self.injection_layer(inputs)

    def call(self, state, injection):
        messages = self.message(state)
        mixing = ops.cast(self._mixing, messages.dtype)
        heard = ops.einsum("nm,bmu->bnu", mixing, messages)
        return ops.tanh(heard + injection)

    def get_config(self):
        config = {"units": self.units, "adjacency": self.adjacency.tolist()}
        return {**super().get_config(), **config}
