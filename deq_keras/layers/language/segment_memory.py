"""Equilibrium layers and cells that read texts segment by segment."""

from typing import Any

import keras
from keras import ops

from deq_keras.core.serialization import Config, arguments_of
from deq_keras.layers.equilibrium import EquilibriumCell
from deq_keras.layers.language.memory_layer import MemoryLayer


class SegmentCell(EquilibriumCell):
    """Base class of the cells of `SegmentMemory`.

    `inject` accepts a dict of `"inputs"`, `(batch, length, features)`, and `"memory"`,
    a dict of tensors for the previous positions, oldest first. The memory grows up to
    the length of the `SegmentMemory`.
    """

    @property
    def output_dim(self) -> int:
        """Returns the size of the features that the following layers receive."""
        raise NotImplementedError

    @property
    def memory_sizes(self) -> dict[str, int]:
        """Returns a dict from the name of each remembered tensor to its last axis."""
        raise NotImplementedError

    def extract_memory(self, inputs: Any, state: Any) -> dict[str, Any]:
        """Returns the tensors to remember for a segment.

        Args:
            inputs: Tensor `(batch, length, features)`.
            state: Equilibrium of the segment.

        Returns:
            Dict of tensors `(batch, length, size)`, with sizes from `memory_sizes`.
        """
        raise NotImplementedError

    def features(self, state: Any) -> Any:
        """Returns the features that the following layers receive.

        Args:
            state: Equilibrium of the segment.

        Returns:
            Tensor `(batch, length, output_dim)`.
        """
        raise NotImplementedError


@keras.saving.register_keras_serializable(package="deq_keras")
class SegmentMemory(MemoryLayer):
    """Carries the memory of an equilibrium from segment to segment.

    Wraps a `DEQ` layer with a `TransformerCell`, a `TransformerXLCell` or a
    `TrellisCell`. Each call in training, or within `reading_segments()`, solves one
    segment of a longer sequence. The cell also sees its memory of the last `length`
    positions before the segment (Dai et al., 2019; for a Transformer, equilibrium and
    injection). The layer then adds the segment to the memory. No gradient flows into
    the memory. Any other call is independent, so an exported layer keeps no memory
    between requests.

    Sample b of a batch must continue sample b of the previous batch. The memory starts
    empty and grows with each segment. Call `reset_memory()` to empty it wherever a new
    sequence starts. A model that contains this layer should call it in `reset_metrics`,
    which Keras calls at the start of every epoch and evaluation. Under a
    `tf.distribute` strategy, each replica remembers its own samples.

    The memory is not saved with the model. It supports any batch size and changes its
    shape as it fills, which XLA cannot compile.

    Args:
        deq: `DEQ` layer whose cell is a `TransformerCell`, a `TransformerXLCell` or a
            `TrellisCell`.
        length: Non-negative integer. Number of positions to remember. 0 disables the
            memory. It can be changed later, for example to remember more at test time.
            Recompile the model after a change.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        inputs: Tensor of shape `(batch, length, features)`.
        mask: Optional Boolean tensor `(batch, length)`, false at padding, which must be
            at the end of a text. Passed to `deq`.
        training: Boolean. Passed to `deq`.

    Input shape:
        `(batch, length, features)`.

    Output shape:
        `(batch, length, output_dim)`: the cell's features of its states.

    Raises:
        ValueError: If `length` is negative, or the cell is not a `SegmentCell`.
        tf.errors.InvalidArgumentError: If the batch size changes while the memory is
            not empty.

    Example:

    >>> cell = deq_keras.layers.TransformerCell(8, num_heads=2, intermediate_dim=16)
    >>> layer = SegmentMemory(deq_keras.layers.DEQ(cell), length=4)
    >>> with layer.reading_segments():
    ...     outputs = layer(keras.random.normal((2, 6, 8)))
    >>> tuple(outputs.shape)
    (2, 6, 8)
    >>> layer.memory_length
    4

    Reference:
        [Dai et al., 2019](https://arxiv.org/abs/1901.02860), section 3.2.
    """

    def __init__(self, deq: keras.layers.Layer, length: int, **kwargs: Any) -> None:
        super().__init__(length, **kwargs)
        if not isinstance(getattr(deq, "cell", None), SegmentCell):
            raise ValueError(
                "`deq` must be a DEQ layer of a TransformerCell, TransformerXLCell or "
                f"TrellisCell. Received: deq={deq!r}."
            )
        self.deq = deq

    @property
    def memory_length(self) -> int:
        """Returns the number of positions that are currently remembered."""
        if not self.built:
            return 0
        return int(ops.shape(next(iter(self.memory.values())))[1])

    def build(self, inputs_shape: Any) -> None:
        if not self.deq.built:
            self.deq.build(inputs_shape)
        self._create_memory(self.deq.cell.memory_sizes)

    @property
    def memory(self) -> dict[str, Any]:
        """Returns a dict of the remembered tensors `(batch, memory_length, size)`, with
        sizes from the cell's `memory_sizes`."""
        return {name: buffer.value for name, buffer in self._memory.items()}

    def _apply(self, inputs: Any, memory: Any, mask: Any, training: Any) -> Any:
        if memory is not None:
            inputs = {"inputs": inputs, "memory": memory}
        state = self.deq(inputs, mask=mask, training=training)
        return self.deq.cell.features(state), state

    def _extract_memory(self, inputs: Any, states: Any) -> dict[str, Any]:
        return self.deq.cell.extract_memory(inputs, states)

    def compute_output_shape(self, inputs_shape: Any) -> Any:
        return (*inputs_shape[:-1], self.deq.cell.output_dim)

    def get_config(self) -> Config:
        return {**super().get_config(), **arguments_of(self, SegmentMemory)}
