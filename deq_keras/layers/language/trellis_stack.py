"""The levels of a TrellisNet, a baseline for equilibrium models."""

from typing import Any

import keras
import tensorflow as tf

from deq_keras.core import checkpointing, nonfinite
from deq_keras.core.checks import (
    check_boolean,
    check_count,
    check_counts,
    check_optional_count,
)
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.layers.language.memory_layer import MemoryLayer
from deq_keras.layers.language.trellis_cell import TrellisCell


@keras.saving.register_keras_serializable(package="deq_keras")
class TrellisStack(MemoryLayer):
    """The levels of a TrellisNet: repeated applications of a `TrellisCell`.

    All levels share the weights and dropout masks, and the first one starts at zero:

        z_0 = 0,    z_(l + 1) = f_(d_l)(z_l, x),    l = 0 ... num_layers - 1

    Level l has the dilation d_l. As published, the taps of the inputs and the shift of
    the cell state use the same distance, instead of the cell's own values. The layer
    remembers the last level's state of a segment, and all levels of the next segment
    see it as their memory.

    Args:
        cell: `TrellisCell`.
        num_layers: Positive integer. Number of levels.
        dilations: Tuple of positive integers. Dilations of the levels, repeated
            cyclically. Defaults to `(1,)`.
        length: Non-negative integer. Number of positions to remember, 1 in the
            published models. Defaults to `0`.
        auxiliary_frequency: Positive integer. Interval of levels whose features are
            additional outputs, for auxiliary losses. Defaults to `None`, which disables
            them.
        recompute: Boolean. Whether the backward pass recomputes the activations inside
            a level instead of storing them, and adds up the gradients of the weights
            level by level. Defaults to `False`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        inputs: Tensor of shape `(batch, length, features)`.
        mask: Ignored. Causal levels never see padding at the end of a text.
        training: Boolean. Whether to apply dropout.

    Input shape:
        `(batch, length, features)`.

    Output shape:
        `(batch, length, output_dim)`, with the `output_dim` of the cell. With an
        `auxiliary_frequency`, a list of this output and the auxiliary ones.

    Raises:
        ValueError: If an argument is out of range.

    Example:

    >>> layer = TrellisStack(deq_keras.layers.TrellisCell(8), 6, dilations=(1, 2))
    >>> tuple(layer(keras.random.normal((2, 5, 4))).shape)
    (2, 5, 8)

    Reference:
        [Bai, Kolter and Koltun, 2019](https://arxiv.org/abs/1810.06682).
    """

    def __init__(
        self,
        cell: TrellisCell,
        num_layers: int,
        dilations: tuple[int, ...] = (1,),
        length: int = 0,
        auxiliary_frequency: int | None = None,
        recompute: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(length, **kwargs)
        if not isinstance(cell, TrellisCell):
            raise ValueError(f"`cell` must be a TrellisCell. Received: cell={cell!r}.")
        self.cell = cell
        self.num_layers = check_count("num_layers", num_layers)
        self.dilations = check_counts("dilations", dilations)
        self.auxiliary_frequency = check_optional_count(
            "auxiliary_frequency", auxiliary_frequency
        )
        self.recompute = check_boolean("recompute", recompute)

    def build(self, inputs_shape: Any) -> None:
        if not self.cell.built:
            self.cell.build(inputs_shape)
        self._create_memory(self.cell.memory_sizes)

    def _apply(self, inputs: Any, memory: Any, mask: Any, training: Any) -> Any:
        del mask
        given = {  # All levels share the same masks.
            "inputs": inputs,
            "memory": memory,
            "constants": self.cell.constants(bool(training)),
            "mask": self.cell.sample_mask(inputs, bool(training)),
        }
        injections = {
            dilation: self.cell.inject_dilated(given, dilation, dilation, dilation)
            for dilation in self.dilations
        }
        # A loop ends at each level whose state is an output.
        step = self.auxiliary_frequency or self.num_layers
        states = [self.cell.initial_state(injections[self.dilations[0]])]
        for first in range(0, self.num_layers, step):
            last = min(first + step, self.num_layers)
            states.append(self._apply_range(states[-1], first, last, injections))
        outputs = self.cell.features(states[-1])
        if self.auxiliary_frequency is not None:
            auxiliary = states[1 : 1 + self.num_layers // self.auxiliary_frequency]
            outputs = [outputs, *map(self.cell.features, auxiliary)]
        return outputs, states[-1]

    def _extract_memory(self, inputs: Any, states: Any) -> dict[str, Any]:
        return self.cell.extract_memory(inputs, states)

    def _apply_range(self, state: Any, first: int, last: int, injections: Any) -> Any:
        """Returns the state after the levels from `first` to `last - 1`.

        The gradient of a loop adds up the gradients of the weights. Without a loop,
        TensorFlow holds one gradient per level, each as large as the weights. A loop
        that stores the activations would store more of them, so only levels that are
        recomputed use one.
        """
        period = len(self.dilations)

        def levels(state: Any, begin: int, end: int) -> Any:
            for level in range(begin, end):
                state = self.cell(state, injections[self.dilations[level % period]])
            return state

        if not self.recompute:
            return levels(state, first, last)
        num_loops, rest = divmod(last - first, period)
        if num_loops > 0:
            _, state = checkpointing.loop(
                lambda i, state: i < num_loops,
                lambda i, state: (i + 1, levels(state, first, first + period)),
                (tf.constant(0), state),
                num_loops,
                interval=1,
                sources=nonfinite.floating(injections),
            )
        return levels(state, last - rest, last)

    def compute_output_shape(self, inputs_shape: Any) -> Any:
        shape = (*inputs_shape[:-1], self.cell.output_dim)
        if self.auxiliary_frequency is None:
            return shape
        return [shape] * (1 + self.num_layers // self.auxiliary_frequency)

    def get_config(self) -> Config:
        return {**super().get_config(), **arguments_of(self, TrellisStack)}
