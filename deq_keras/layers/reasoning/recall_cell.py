"""The convolutional cell that sees its input again in every evaluation."""

import keras
from keras import ops

from deq_keras.checks import check_choice, check_count, check_integer
from deq_keras.layers.equilibrium import EquilibriumCell
from deq_keras.layers.reasoning.sphere import on_sphere

_ACTIVATIONS = {
    "relu6": ops.relu6,
    "tanh": ops.tanh,
    "sphere": on_sphere,
    "relu": ops.relu,
}
_CONVOLUTIONS = {1: keras.layers.Conv1D, 2: keras.layers.Conv2D}


@keras.saving.register_keras_serializable(package="deq_keras")
class RecallCell(EquilibriumCell):
    """Two residual blocks of convolutions that see the input in every evaluation.

    The cell for tasks of any length or size, whose answers spread from neighbour to
    neighbour: prefixes, paths. With the input x and the state z of each position,

    ```
    h = relu(W0 * [z, x])
    h = relu(h + W2 * relu(W1 * h))
    f(z, x) = activation(h + W4 * relu(W3 * h))
    ```

    (Bansal et al., 2022, DT-net with recall). The five convolutions have windows of
    three positions a side and no bias, and nothing is normalised over positions:
    information travels by at most `reach` positions in an evaluation, which is 5.

    Args:
        filters: Positive integer. Number of channels of the state.
        rank: Integer, `1` for sequences or `2` for images and boards. Defaults to `2`.
        activation: What bounds the state: `"relu6"`, entries from 0 to 6; `"tanh"`,
            from -1 to 1; `"sphere"`, each position scaled to a root mean square of one.
            Or `"relu"` of Bansal et al., which bounds nothing: states may grow without
            end before training has begun. Defaults to `"relu6"`, which leaves states
            alone that have been trained.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        state: Tensor of shape `(batch, *positions, filters)`.
        injection: What `inject` returned for this solve.

    Input shape:
        Of `inject`: `(batch, length, channels)`, or `(batch, height, width, channels)`
        with a `rank` of 2.

    Output shape:
        `(batch, *positions, filters)`.

    Raises:
        ValueError: If an argument is out of its range, or the inputs have another rank.

    Example:

    >>> equilibrium = deq_keras.layers.DEQ(RecallCell(8, rank=1))
    >>> equilibrium(keras.ops.ones((3, 5, 1))).shape
    TensorShape([3, 5, 8])

    Reference:

    - Bansal et al. (2022), "End-to-end Algorithm Synthesis with Recurrent Networks:
      Logical Extrapolation Without Overthinking".
    """

    reach = 5

    def __init__(self, filters, rank=2, activation="relu6", **kwargs):
        super().__init__(**kwargs)
        self.filters = check_count("filters", filters)
        self.rank = check_integer("rank", rank, 1, 2)
        self.activation = check_choice("activation", activation, _ACTIVATIONS)
        self.recall = self._convolution("recall")
        self.residual1 = self._convolution("residual1")
        self.residual2 = self._convolution("residual2")
        self.residual3 = self._convolution("residual3")
        self.residual4 = self._convolution("residual4")

    def build(self, input_shape):
        *positions, channels = input_shape
        if len(positions) != self.rank + 1 or channels is None:
            axes = "length" if self.rank == 1 else "height, width"
            raise ValueError(
                f"Cell '{self.name}' of rank={self.rank} expects inputs of shape "
                f"(batch, {axes}, channels) with a static number of channels. "
                f"Received: inputs of shape {tuple(input_shape)}."
            )
        self.recall.build((*positions, self.filters + channels))
        for layer in (
            self.residual1,
            self.residual2,
            self.residual3,
            self.residual4,
        ):
            layer.build((*positions, self.filters))

    def inject(self, inputs, training=False, mask=None):
        """Returns what the first convolution makes of the inputs, and which positions
        are no padding.

        Args:
            inputs: Tensor of shape `(batch, *positions, channels)`.
            training: Boolean. Without effect.
            mask: Boolean tensor `(batch, *positions)`, false at padding, or `None`.

        Returns:
            Dict of the tensors `"recalled"`, `(batch, *positions, filters)`, `"kernel"`
            of what that convolution makes of a state, and, with a mask, `"mask"`,
            `(batch, *positions, 1)`.
        """
        del training
        if not self.built:
            self.build(tuple(inputs.shape))
        inputs = ops.cast(inputs, self.compute_dtype)
        injection = {}
        if mask is not None:
            injection["mask"] = ops.cast(mask, self.compute_dtype)[..., None]
            inputs = inputs * injection["mask"]
        # W0 * [z, x] is W0z * z + W0x * x.
        kernel = ops.cast(self.recall.kernel, self.compute_dtype)
        injection["kernel"] = kernel[..., : self.filters, :]
        of_inputs = kernel[..., self.filters :, :]
        return {**injection, "recalled": _convolved(inputs, of_inputs)}

    def initial_state(self, injection):
        """Returns zeros of the shape of the state."""
        return ops.zeros_like(injection["recalled"])

    def call(self, state, injection):
        mask = injection.get("mask")
        hidden = _convolved(state, injection["kernel"]) + injection["recalled"]
        hidden = _kept(ops.relu(hidden), mask)
        inner = _kept(ops.relu(self.residual1(hidden)), mask)
        hidden = _kept(ops.relu(hidden + self.residual2(inner)), mask)
        inner = _kept(ops.relu(self.residual3(hidden)), mask)
        return _ACTIVATIONS[self.activation](hidden + self.residual4(inner))

    def get_config(self):
        return {
            **super().get_config(),
            "filters": self.filters,
            "rank": self.rank,
            "activation": self.activation,
        }

    def _convolution(self, name):
        return _CONVOLUTIONS[self.rank](
            self.filters,
            3,
            padding="same",
            use_bias=False,
            kernel_initializer="he_uniform",
            name=name,
            dtype=self.dtype_policy,
        )


def _convolved(tensor, kernel):
    return ops.conv(tensor, kernel, padding="same")


def _kept(hidden, mask):
    # What padding is given of its neighbours does not come back to them.
    return hidden if mask is None else hidden * mask
