"""The convolutional reasoning cell with small local updates."""

import keras
from keras import ops

from deq_keras.core.checks import check_fraction, check_positive
from deq_keras.layers.reasoning.convolutional_cell import ConvolutionalCell


@keras.saving.register_keras_serializable(package="deq_keras")
class AutomatonCell(ConvolutionalCell):
    """A neural cellular automaton: each position sees its neighbors and itself.

    Suited to problems whose solution spreads from neighbor to neighbor over any
    distance, such as mazes. With the input x and the state z of each position,

    ```
    h = relu(W0 * [z, x])
    h = relu(h + W2 * relu(W1 * h))
    f(z, x) = tanh((1 - leak) * z + step * W4 * relu(W3 * h))
    ```

    Only the convolution W0 sees adjacent positions, so information travels by one
    position per evaluation (`reach`), a fifth of a `RecallCell`'s reach. Even small
    problems take many evaluations, so the learned rule generalizes to large problems,
    which take as many evaluations as their solutions are long. The cell uses neither
    biases nor normalization over positions. W4 is zero before training: the identity is
    a better initial rule than a random one, which fills the states with noise after a
    few evaluations. The leak decays the state unless the rule maintains it. Without the
    leak, states drift or oscillate for thousands of evaluations after the solution is
    found; with it, they converge. Half steps, `FixedPointIteration(damping=0.5)`, damp
    the remaining oscillations.

    Args:
        filters: Positive integer. Number of channels of the state.
        rank: Integer. `1` for sequences or `2` for images and boards. Defaults to `2`.
        step: Positive float. Step size of the updates. Defaults to `0.2`.
        leak: Float in [0, 1]. Fraction of the state that decays per evaluation.
            Defaults to `0.1`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        state: Tensor of shape `(batch, *positions, filters)`.
        injection: Dict. Result of `inject` for this solve.

    Input shape:
        `(batch, length, channels)`, or `(batch, height, width, channels)` with a `rank`
        of 2, for `inject`.

    Output shape:
        `(batch, *positions, filters)`, with values in [-1, 1].

    Raises:
        ValueError: If an argument is out of range, or the inputs have another rank.

    Example:

    >>> equilibrium = deq_keras.layers.DEQ(AutomatonCell(8))
    >>> equilibrium(keras.ops.ones((3, 5, 5, 1))).shape
    TensorShape([3, 5, 5, 8])

    Reference:

    - Mordvintsev et al. (2020), "Growing Neural Cellular Automata", Distill.
    """

    reach = 1

    def __init__(self, filters, rank=2, step=0.2, leak=0.1, **kwargs):
        super().__init__(
            filters, rank, block_window=1, last_initializer="zeros", **kwargs
        )
        self.step = check_positive("step", step)
        self.leak = check_fraction("leak", leak)

    def call(self, state, injection):
        _, change = self.blocks(state, injection)
        return ops.tanh((1.0 - self.leak) * state + self.step * change)

    def get_config(self):
        return {**super().get_config(), "step": self.step, "leak": self.leak}
