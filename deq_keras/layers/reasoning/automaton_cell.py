"""The convolutional cell that changes its state step by step, by what is near."""

import keras
from keras import ops

from deq_keras.core.checks import check_fraction, check_positive
from deq_keras.layers.reasoning.convolutional_cell import ConvolutionalCell


@keras.saving.register_keras_serializable(package="deq_keras")
class AutomatonCell(ConvolutionalCell):
    """A neural cellular automaton: each position knows its neighbors and itself.

    The cell for answers that follow from one place to the next over any distance, such
    as a path through a maze. With the input x and the state z of each position,

    ```
    h = relu(W0 * [z, x])
    h = relu(h + W2 * relu(W1 * h))
    f(z, x) = tanh((1 - leak) * z + step * W4 * relu(W3 * h))
    ```

    Only the convolution W0 sees neighbors, the next ones: information travels by one
    position in an evaluation, `reach`, a fifth of that of a `RecallCell`. So a small
    problem cannot be answered at a glance, and what has been learnt of it holds for
    large ones, which take more evaluations, as many as their answers are long. Nothing
    has a bias, and nothing is normalized over positions. W4 is zero before training: a
    rule that changes nothing is a better one to begin with than one drawn at random,
    which fills the states with noise after a few evaluations. What a state holds leaks
    away unless the rule keeps it up. Without the leak, a state that the rule leaves
    alone hardly moves, and others drift or swing for thousands of evaluations after the
    answer is there; with it they settle. The swings from one evaluation to the next
    that are left are damped by half steps, `FixedPointIteration(damping=0.5)`.

    Args:
        filters: Positive integer. Number of channels of the state.
        rank: Integer, `1` for sequences or `2` for images and boards. Defaults to `2`.
        step: Positive float. How fast a state changes. Defaults to `0.2`.
        leak: Float in [0, 1]. Share of a state that an evaluation forgets. Defaults to
            `0.1`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        state: Tensor of shape `(batch, *positions, filters)`.
        injection: What `inject` returned for this solve.

    Input shape:
        Of `inject`: `(batch, length, channels)`, or `(batch, height, width, channels)`
        with a `rank` of 2.

    Output shape:
        `(batch, *positions, filters)`, from -1 to 1.

    Raises:
        ValueError: If an argument is out of its range, or the inputs have another rank.

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
