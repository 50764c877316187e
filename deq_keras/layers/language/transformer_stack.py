"""Explicit Transformer layers, the baseline of an equilibrium."""

import keras
from keras import ops

from deq_keras.checks import check_boolean, check_count
from deq_keras.layers.language.memory_buffer import MemoryBuffer
from deq_keras.layers.language.memory_layer import MemoryLayer


@keras.saving.register_keras_serializable(package="deq_keras")
class TransformerStack(MemoryLayer):
    """Explicit layers in place of a DEQ-Transformer's equilibrium.

    The baseline of an equilibrium: `num_layers` applications of a `TransformerCell` to
    the same injected input, starting from zeros, back-propagated through,

        z_0 = 0,    z_(l + 1) = f_l(z_l, x),    l = 0 ... num_layers - 1

    with one cell for all of them (weight-tied) or a cell for each. The memory is that
    of Transformer-XL (Dai et al., 2019): each layer attends to its own inputs of the
    segments before; see `SegmentMemory` for what holds of a memory. The layers are
    not: here every layer has x injected and the first one starts from zeros, there x
    enters the first layer alone.

    Args:
        cells: List of one `TransformerCell`, or of `num_layers` of them.
        num_layers: Positive integer. Number of applications.
        length: Integer >= 0. Positions to remember. Defaults to `0`.
        recompute: Boolean. Whether the backward pass computes the activations inside
            a layer again instead of keeping them (`keras.remat`). Defaults to `False`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        inputs: Tensor of shape `(batch, length, features)`.
        mask: Optional Boolean tensor `(batch, length)`, false at padding, which no
            position sees.
        training: Boolean. Whether to drop.

    Input shape:
        `(batch, length, features)`.

    Output shape:
        `(batch, length, units)`, with the units of the cells.

    Raises:
        ValueError: If there are other numbers of cells, or an argument is out of its
            range.

    Example:

    >>> cell = deq_keras.layers.TransformerCell(8, num_heads=2, intermediate_dim=16)
    >>> layer = TransformerStack([cell], num_layers=6)
    >>> tuple(layer(keras.random.normal((2, 5, 8))).shape)
    (2, 5, 8)

    Reference:
        [Dai et al., 2019](https://arxiv.org/abs/1901.02860), section 3.2: the memory.
    """

    def __init__(self, cells, num_layers, length=0, recompute=False, **kwargs):
        super().__init__(length, **kwargs)
        self.num_layers = check_count("num_layers", num_layers)
        self.recompute = check_boolean("recompute", recompute)
        if len(cells) not in (1, num_layers):
            raise ValueError(
                f"`cells` must be a list of 1 or num_layers={num_layers} cells. "
                f"Received: {len(cells)} cells."
            )
        self.cells = list(cells)

    def build(self, inputs_shape):
        for cell in self.cells:
            cell.build(inputs_shape)
        self._states = MemoryBuffer(
            self.num_layers * self.cells[0].units, self.compute_dtype, "memory_states"
        )
        self._inputs = MemoryBuffer(
            inputs_shape[-1], self.compute_dtype, "memory_inputs"
        )

    def reset_memory(self):
        """Empties the memory."""
        if self.built:
            self._states.reset()
            self._inputs.reset()

    def call(self, inputs, mask=None, training=None):
        if not self._remembers(training):
            return self._apply_layers(inputs, None, mask, training)[-1]
        batch = ops.shape(inputs)[0]
        memory = self._states.read(batch), self._inputs.read(batch)
        states = self._apply_layers(inputs, memory, mask, training)
        # The memory of a layer is what came in.
        self._states.write(
            memory[0], ops.concatenate(states[:-1], axis=-1), self.length
        )
        self._inputs.write(memory[1], inputs, self.length)
        return states[-1]

    def _apply_layers(self, inputs, memory, mask, training):
        """Returns the inputs of all layers and the output of the last."""
        states = [
            ops.zeros((*ops.shape(inputs)[:-1], self.cells[0].units), inputs.dtype)
        ]
        constants = self._constants(inputs, memory, bool(training))
        for layer in range(self.num_layers):
            index = layer % len(self.cells)
            cell = self.cells[index]
            cell_inputs = {"inputs": inputs, "constants": constants[index]}
            if memory is not None:
                cell_inputs["memory"] = _memory_of_layer(cell, layer, *memory)
            # Draws the dropout masks, so it is not computed again.
            injection = cell.inject(cell_inputs, training=bool(training), mask=mask)
            apply = keras.remat(cell.__call__) if self.recompute else cell
            states.append(apply(states[-1], injection))
        return states

    def _constants(self, inputs, memory, training):
        """Returns kernels and positions by cell: tied layers share them."""
        num_keys = ops.shape(inputs)[1]
        if memory is not None:
            num_keys = num_keys + ops.shape(memory[0])[1]
        return [cell.constants(num_keys, training) for cell in self.cells]

    def compute_output_shape(self, inputs_shape):
        return (*inputs_shape[:-1], self.cells[0].units)

    def get_config(self):
        config = {
            "cells": [keras.saving.serialize_keras_object(c) for c in self.cells],
            "num_layers": self.num_layers,
            "length": self.length,
            "recompute": self.recompute,
        }
        return {**super().get_config(), **config}

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        cells = [
            keras.saving.deserialize_keras_object(cell) for cell in config.pop("cells")
        ]
        return cls(cells, **config)


def _memory_of_layer(cell, layer, states, inputs):
    start = layer * cell.units
    return {
        "states": states[:, :, start : start + cell.units],
        "injections": cell.injection_projection(inputs),
    }
