"""The cell of the tasks on sequences and images through which information travels."""

import keras
from keras import ops

import deq_keras


@keras.saving.register_keras_serializable("deq_keras_training")
class ConvolutionalCell(deq_keras.layers.EquilibriumCell):
    """Cell of one residual block of two convolutions, for sequences or images.

        f(z, x) = norm(relu(z + W2 * relu(W1 * z + U * x + b1) + b2))

    All windows have three positions a side, so that information travels by at most two
    positions in an evaluation. The norm is a group norm over all positions.

    Args:
        filters: int >= 1, a multiple of `groups`. Channels of the state.
        rank: int, 1 for sequences or 2 for images. Defaults to `1`.
        groups: int >= 1. Groups of channels of the norm. Defaults to `4`.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        state: z, tensor `(batch, length, filters)` or `(batch, height, width,
            filters)`.
        injection: U * x, tensor of the same shape.

    Input shape:
        Of `inject`: `(batch, length, channels)` or `(batch, height, width, channels)`.

    Output shape:
        That of the state.

    Raises:
        ValueError: if an argument is out of its range.

    Example:

    >>> equilibrium = deq_keras.layers.DEQ(ConvolutionalCell(8))
    >>> equilibrium(keras.ops.ones((3, 5, 2))).shape
    TensorShape([3, 5, 8])
    """

    def __init__(self, filters, rank=1, groups=4, **kwargs):
        super().__init__(**kwargs)
        if filters < 1 or groups < 1 or filters % groups or rank not in (1, 2):
            raise ValueError(
                "`filters` must be a positive multiple of `groups`, and `rank` 1 or 2. "
                f"Received: filters={filters}, groups={groups}, rank={rank}."
            )
        self.filters = filters
        self.rank = rank
        self.groups = groups
        self.injection_layer = self._convolution("injection")
        self.convolution1 = self._convolution("convolution1")
        self.convolution2 = self._convolution("convolution2")
        self.norm = deq_keras.layers.GroupNormalization(
            groups, name="norm", dtype=self.dtype_policy
        )

    def build(self, inputs_shape):
        state_shape = (*inputs_shape[:-1], self.filters)
        self.injection_layer.build(inputs_shape)
        for layer in (self.convolution1, self.convolution2, self.norm):
            layer.build(state_shape)

    def inject(self, inputs, training=False):
        """Returns U * x of the inputs x."""
        del training
        if not self.built:
            self.build(tuple(inputs.shape))
        return self.injection_layer(inputs)

    def call(self, state, injection):
        hidden = ops.relu(self.convolution1(state) + injection)
        return self.norm(ops.relu(state + self.convolution2(hidden)))

    def get_config(self):
        config = {"filters": self.filters, "rank": self.rank, "groups": self.groups}
        return {**super().get_config(), **config}

    def _convolution(self, name):
        cls = keras.layers.Conv1D if self.rank == 1 else keras.layers.Conv2D
        return cls(self.filters, 3, padding="same", name=name, dtype=self.dtype_policy)
