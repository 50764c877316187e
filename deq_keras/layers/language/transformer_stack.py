"""Explicit Transformer layers, a baseline for equilibrium models."""

from typing import Any

import keras
from keras import ops

from deq_keras.core.checks import check_boolean, check_count
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.layers.language.memory_layer import MemoryLayer


@keras.saving.register_keras_serializable(package="deq_keras")
class TransformerStack(MemoryLayer):
    """Explicit layers of a Transformer.

    With `TransformerCell`s, it is a baseline for equilibrium models: it applies
    `num_layers` layers to the same injected input, starting at zero, and backpropagates
    through all of them:

        z_0 = 0,    z_(l + 1) = f_l(z_l, x),    l = 0 ... num_layers - 1

    With `TransformerXLLayer`s, it is Transformer-XL (Dai et al., 2019): z_0 is the
    input, and only the first layer sees it. All layers share their weights, or each has
    its own. Each layer attends to its own inputs in previous segments; see
    `SegmentMemory` for properties of the memory.

    Args:
        cells: List of `TransformerCell`s or `TransformerXLLayer`s. Its length must be 1
            or `num_layers`.
        num_layers: Positive integer. Number of applications.
        length: Non-negative integer. Number of positions to remember. Defaults to `0`.
        recompute: Boolean. Whether the backward pass recomputes the activations inside
            a layer instead of storing them (`keras.remat`). Defaults to `False`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        inputs: Tensor of shape `(batch, length, features)`.
        mask: Optional Boolean tensor `(batch, length)`, false at padding, which other
            positions ignore.
        training: Boolean. Whether to apply dropout.

    Input shape:
        `(batch, length, features)`.

    Output shape:
        `(batch, length, units)`, with the units of the cells.

    Raises:
        ValueError: If the number of cells is invalid, or an argument is out of range.

    Example:

    >>> cell = deq_keras.layers.TransformerCell(8, num_heads=2, intermediate_dim=16)
    >>> layer = TransformerStack([cell], num_layers=6)
    >>> tuple(layer(keras.random.normal((2, 5, 8))).shape)
    (2, 5, 8)

    Reference:
        [Dai et al., 2019](https://arxiv.org/abs/1901.02860), section 3.2: the memory.
    """

    def __init__(
        self,
        cells: list[Any],
        num_layers: int,
        length: int = 0,
        recompute: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(length, **kwargs)
        self.num_layers = check_count("num_layers", num_layers)
        self.recompute = check_boolean("recompute", recompute)
        if len(cells) not in (1, num_layers):
            raise ValueError(
                f"`cells` must be a list of 1 or num_layers={num_layers} cells. "
                f"Received: {len(cells)} cells."
            )
        self.cells = list(cells)

    def build(self, inputs_shape: Any) -> None:
        for cell in self.cells:
            if not cell.built:  # A cell loaded from a file is already built.
                cell.build(inputs_shape)
        states_size = self.num_layers * self.cells[0].units
        self._create_memory({"states": states_size, "inputs": inputs_shape[-1]})

    def _apply(self, inputs: Any, memory: Any, mask: Any, training: Any) -> Any:
        memories, size = {}, self.cells[0].units
        if memory is not None:
            for layer in range(self.num_layers):
                states = memory["states"][:, :, layer * size : (layer + 1) * size]
                cell = self._cell(layer)
                memories[layer] = cell.extract_memory(memory["inputs"], states)
        states, _ = self._apply_layers(inputs, memories, mask, training)
        return states[-1], states[:-1]

    def _extract_memory(self, inputs: Any, states: Any) -> dict[str, Any]:
        # The memory of a layer consists of its inputs.
        return {"states": ops.concatenate(states, axis=-1), "inputs": inputs}

    def apply_after(
        self,
        inputs: Any,
        cache: Any = None,
        cache_mask: Any = None,
        constants: Any = None,
        mask: Any = None,
    ) -> tuple[Any, Any]:
        """Applies the layers to positions that follow cached ones, for inference.

        Args:
            inputs: Tensor `(batch, length, features)`.
            cache: Optional tensor `(batch, 2 * num_layers, num_heads, cache_length,
                head_dim)`. Keys and values of the previous positions in each layer.
            cache_mask: Boolean tensor `(batch, cache_length)`, true at valid positions.
            constants: Optional. Result of `constants`.
            mask: Optional Boolean tensor `(batch, length)`, false at padding.

        Returns:
            Tuple of the outputs `(batch, length, units)`, and the keys and values of
            the new positions, in the format of `cache`.
        """
        memories = {}
        if cache is not None:
            for layer in range(self.num_layers):
                keys, values = cache[:, 2 * layer], cache[:, 2 * layer + 1]
                memories[layer] = {"keys": keys, "values": values, "mask": cache_mask}
        states, injections = self._apply_layers(
            inputs, memories, mask, False, constants
        )
        keys_and_values = [
            tensor
            for layer, injection in enumerate(injections)
            for tensor in self._cell(layer).keys_and_values(states[layer], injection)
        ]
        return states[-1], ops.stack(keys_and_values, axis=1)

    def _apply_layers(
        self,
        inputs: Any,
        memories: Any,
        mask: Any,
        training: Any,
        constants: Any = None,
    ) -> tuple[list[Any], list[Any]]:
        """Returns the inputs of all layers with the last output, and the injections."""
        states, injections = [self.cells[0].first_state(inputs)], []
        if constants is None:
            num_keys = ops.shape(inputs)[1]
            if memories:
                before = memories[0].get("keys", memories[0].get("states"))
                num_keys = num_keys + ops.shape(before)[-2]
            constants = self.constants(num_keys, bool(training))
        for layer in range(self.num_layers):
            cell = self._cell(layer)
            given = {"inputs": inputs, "constants": constants[layer % len(self.cells)]}
            if memories:
                given["memory"] = memories[layer]
            # Draws the dropout masks, so `keras.remat` must not recompute it.
            injection = cell.inject(given, training=bool(training), mask=mask)
            apply = keras.remat(cell.__call__) if self.recompute else cell
            states.append(apply(states[-1], injection))
            injections.append(injection)
        return states, injections

    def constants(self, num_keys: Any, training: bool = False) -> list[Any]:
        """Returns kernels and positions for each cell. Tied layers share them.

        Args:
            num_keys: Integer or scalar tensor. Number of positions of the memory and
                the sequence together.
            training: Boolean. Whether to drop channels of the sinusoids.
        """
        return [cell.constants(num_keys, training) for cell in self.cells]

    def _cell(self, layer: int) -> Any:
        return self.cells[layer % len(self.cells)]

    def compute_output_shape(self, inputs_shape: Any) -> Any:
        return (*inputs_shape[:-1], self.cells[0].units)

    def get_config(self) -> Config:
        return {**super().get_config(), **arguments_of(self, TransformerStack)}
