"""Reasoning cells of convolutions, which see the inputs at every evaluation."""

from typing import Any

import keras
from keras import ops

from deq_keras.core.checks import (
    check_choice,
    check_count,
    check_fraction,
    check_integer,
    check_positive,
)
from deq_keras.core.serialization import Config
from deq_keras.layers.equilibrium import EquilibriumCell
from deq_keras.layers.reasoning.token_cell import on_sphere

_CONVOLUTIONS = {1: keras.layers.Conv1D, 2: keras.layers.Conv2D}
_ACTIVATIONS = {
    "relu6": ops.relu6,
    "tanh": ops.tanh,
    "sphere": on_sphere,
    "relu": ops.relu,
}


class ConvolutionalCell(EquilibriumCell):
    """A convolution of state and input, followed by two residual blocks.

    The cell uses neither biases nor normalization over positions, so problems can have
    any size, and padding stays zero. Subclasses implement `call` with `blocks`.

    Args:
        filters: Positive integer. Number of channels of the state.
        rank: Integer. `1` for sequences or `2` for images and boards.
        block_window: Positive odd integer. Kernel size of the convolutions in the
            blocks. The first convolution has kernel size 3.
        last_initializer: Initializer of the last convolution's kernel. Defaults to
            `"he_uniform"`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.
    """

    def __init__(
        self,
        filters: int,
        rank: int,
        block_window: int,
        last_initializer: Any = "he_uniform",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.filters = check_count("filters", filters)
        self.rank = check_integer("rank", rank, 1, 2)
        self.recall = self._convolution("recall", 3)
        self.residual1 = self._convolution("residual1", block_window)
        self.residual2 = self._convolution("residual2", block_window)
        self.residual3 = self._convolution("residual3", block_window)
        self.residual4 = self._convolution("residual4", block_window, last_initializer)

    def _convolution(
        self, name: str, size: int, initializer: Any = "he_uniform"
    ) -> Any:
        return _CONVOLUTIONS[self.rank](
            self.filters,
            size,
            padding="same",
            data_format="channels_last",
            use_bias=False,
            kernel_initializer=initializer,
            name=name,
            dtype=self.dtype_policy,
        )

    def build(self, input_shape: Any) -> None:
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

    def inject(self, inputs: Any, training: bool = False, mask: Any = None) -> Any:
        """Returns the first convolution of the inputs, and the padding mask.

        Args:
            inputs: Tensor of shape `(batch, *positions, channels)`.
            training: Boolean. Ignored.
            mask: Optional Boolean tensor `(batch, *positions)`, false at padding.

        Returns:
            Dict of the tensors `"recalled"`, `(batch, *positions, filters)`, and
            `"kernel"`, the kernel to convolve the state with. With a mask, also
            `"mask"`, `(batch, *positions, 1)`.
        """
        del training
        if not self.built:
            self.build(tuple(inputs.shape))
        inputs = ops.cast(inputs, self.compute_dtype)
        injection = {}
        if mask is not None:
            injection["mask"] = ops.cast(mask, self.compute_dtype)[..., None]
            inputs = inputs * injection["mask"]
        # Splits the kernel: W0 * [z, x] is W0z * z + W0x * x.
        kernel = ops.cast(self.recall.kernel, self.compute_dtype)
        injection["kernel"] = kernel[..., : self.filters, :]
        of_inputs = kernel[..., self.filters :, :]
        return {**injection, "recalled": _convolve(inputs, of_inputs)}

    def initial_state(self, injection: Any) -> Any:
        """Returns a state of zeros."""
        return ops.zeros_like(injection["recalled"])

    def blocks(self, state: Any, injection: Any) -> Any:
        """Returns

            h = relu(W0 * [z, x])
            h = relu(h + W2 * relu(W1 * h))

        and W4 * relu(W3 * h), both `(batch, *positions, filters)`.
        """
        mask = injection.get("mask")
        hidden = _convolve(state, injection["kernel"]) + injection["recalled"]
        hidden = _zero_padding(ops.relu(hidden), mask)
        inner = _zero_padding(ops.relu(self.residual1(hidden)), mask)
        hidden = _zero_padding(ops.relu(hidden + self.residual2(inner)), mask)
        inner = _zero_padding(ops.relu(self.residual3(hidden)), mask)
        return hidden, self.residual4(inner)

    def get_config(self) -> Config:
        return {**super().get_config(), "filters": self.filters, "rank": self.rank}


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

    def __init__(
        self, filters: int, rank: int = 2, activation: str = "relu6", **kwargs: Any
    ) -> None:
        super().__init__(filters, rank, block_window=3, **kwargs)
        self.activation = check_choice("activation", activation, _ACTIVATIONS)

    def call(self, state: Any, injection: Any) -> Any:
        hidden, change = self.blocks(state, injection)
        return _ACTIVATIONS[self.activation](hidden + change)

    def get_config(self) -> Config:
        return {**super().get_config(), "activation": self.activation}


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
        filters: See `RecallCell`.
        rank: See `RecallCell`. Defaults to `2`.
        step: Positive float. Step size of the updates. Defaults to `0.2`.
        leak: Float in [0, 1]. Fraction of the state that decays per evaluation.
            Defaults to `0.1`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        state, injection: See `RecallCell`.

    Output shape:
        `(batch, *positions, filters)`, with values in [-1, 1].

    Example:

    >>> equilibrium = deq_keras.layers.DEQ(AutomatonCell(8))
    >>> equilibrium(keras.ops.ones((3, 5, 5, 1))).shape
    TensorShape([3, 5, 5, 8])

    Reference:

    - Mordvintsev et al. (2020), "Growing Neural Cellular Automata", Distill.
    """

    reach = 1

    def __init__(
        self,
        filters: int,
        rank: int = 2,
        step: float = 0.2,
        leak: float = 0.1,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            filters, rank, block_window=1, last_initializer="zeros", **kwargs
        )
        self.step = check_positive("step", step)
        self.leak = check_fraction("leak", leak)

    def call(self, state: Any, injection: Any) -> Any:
        _, change = self.blocks(state, injection)
        return ops.tanh((1.0 - self.leak) * state + self.step * change)

    def get_config(self) -> Config:
        return {**super().get_config(), "step": self.step, "leak": self.leak}


def _convolve(tensor: Any, kernel: Any) -> Any:
    return ops.conv(tensor, kernel, padding="same", data_format="channels_last")


def _zero_padding(hidden: Any, mask: Any) -> Any:
    # Zeroes padding, so that values cannot travel through it.
    return hidden if mask is None else hidden * mask
