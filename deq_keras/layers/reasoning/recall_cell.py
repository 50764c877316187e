"""The convolutional reasoning cell of DT-net with recall."""

import keras
from keras import ops

from deq_keras.core.checks import check_choice
from deq_keras.layers.reasoning.convolutional_cell import ConvolutionalCell
from deq_keras.layers.reasoning.token_cell import on_sphere

_ACTIVATIONS = {
    "relu6": ops.relu6,
    "tanh": ops.tanh,
    "sphere": on_sphere,
    "relu": ops.relu,
}


@keras.saving.register_keras_serializable(package="deq_keras")
class RecallCell(ConvolutionalCell):
    """Two residual blocks of convolutions that receive the input in every evaluation.

    Suited to problems of any length or size whose solution spreads from neighbor to
    neighbor, such as prefix sums or paths. With the input x and the state z of each
    position,

    ```
    h = relu(W0 * [z, x])
    h = relu(h + W2 * relu(W1 * h))
    f(z, x) = activation(h + W4 * relu(W3 * h))
    ```

    (Bansal et al., 2022, DT-net with recall). The five convolutions have kernel size 3.
    The cell uses neither biases nor normalization over positions, so information
    travels by at most 5 positions per evaluation (`reach`).

    Args:
        filters: Positive integer. Number of channels of the state.
        rank: Integer. `1` for sequences or `2` for images and boards. Defaults to `2`.
        activation: String. Function that bounds the state: `"relu6"` to [0, 6],
            `"tanh"` to [-1, 1], or `"sphere"`, which scales each position to a root
            mean square of one. `"relu"` of Bansal et al. does not bound the state,
            which can grow indefinitely before training. Defaults to `"relu6"`, which
            does not affect trained states.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        state: Tensor of shape `(batch, *positions, filters)`.
        injection: Dict. Result of `inject` for this solve.

    Input shape:
        `(batch, length, channels)`, or `(batch, height, width, channels)` with a `rank`
        of 2, for `inject`.

    Output shape:
        `(batch, *positions, filters)`.

    Raises:
        ValueError: If an argument is out of range, or the inputs have another rank.

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
        super().__init__(filters, rank, block_window=3, **kwargs)
        self.activation = check_choice("activation", activation, _ACTIVATIONS)

    def call(self, state, injection):
        hidden, change = self.blocks(state, injection)
        return _ACTIVATIONS[self.activation](hidden + change)

    def get_config(self):
        return {**super().get_config(), "activation": self.activation}
