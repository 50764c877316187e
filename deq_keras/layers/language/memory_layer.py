"""Base class of layers that remember the previous segments of a text."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from deq_keras.core.checks import check_integer
from deq_keras.core.serialization import Config

OTHER_ROWS = "The batch size differs from the batch size of the remembered segment."


class MemoryBuffer(tf.Module):
    """Remembers a tensor `(batch, positions, size)` from segment to segment.

    It supports any batch size and starts empty. Under a `tf.distribute` strategy, each
    replica has its own buffer.

    Args:
        size: Positive integer. Size of the last axis.
        dtype: String or dtype. Dtype of the tensor.
        name: String. Name of the variable.
    """

    def __init__(self, size: int, dtype: Any, name: str) -> None:
        super().__init__(name=name)
        with tf.init_scope():
            # A Keras weight would be saved, and its shape could not change.
            self._variable = tf.Variable(
                lambda: tf.zeros((0, 0, size), dtype),
                shape=(None, None, size),
                trainable=False,
                name=name,
                # Each replica has its own samples, and no code reads across replicas.
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )

    @property
    def value(self) -> Any:
        """Returns the remembered tensor `(batch, positions, size)`."""
        return tf.identity(self._variable)

    def reset(self) -> None:
        """Empties the buffer."""
        shape = (0, 0, self._variable.shape[-1])
        self._variable.assign(tf.zeros(shape, self._variable.dtype))

    def read(self, batch: Any) -> Any:
        """Returns the remembered tensor, or `(batch, 0, size)` if the buffer is empty.

        Raises:
            tf.errors.InvalidArgumentError: If its batch size differs.
        """
        # An empty buffer has a batch size of 0: use the batch size of the inputs.
        value = tf.convert_to_tensor(self._variable)
        empty = tf.zeros((batch, 0, value.shape[-1]), value.dtype)
        is_empty = tf.equal(tf.shape(value)[1], 0)
        value = tf.cond(is_empty, lambda: empty, lambda: value)
        check = tf.debugging.assert_equal(
            tf.shape(value)[0],
            batch,
            message=f"{OTHER_ROWS} Call `reset_memory()` where a new sequence begins.",
        )
        with tf.control_dependencies([check] if check is not None else []):
            return tf.identity(value)

    def write(self, before: Any, new: Any, length: int) -> None:
        """Stores the last `length` positions of `before` and `new` as constants."""
        new = tf.cast(new, self._variable.dtype)
        remembered = tf.concat([before, new], axis=1)[:, -length:]
        self._variable.assign(tf.stop_gradient(remembered))


class MemoryLayer(keras.layers.Layer):
    """Base class of layers that remember the last positions of previous segments.

    Calls in training and calls within `reading_segments` process consecutive segments
    of longer texts. All other calls are independent: they neither read nor write the
    memory.

    Args:
        length: Non-negative integer. Number of positions to remember. 0 disables the
            memory.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.
    """

    def __init__(self, length: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.length = length
        self._is_reading = False
        self.supports_masking = True

    @property
    def length(self) -> int:
        return self._length

    @length.setter
    def length(self, length: int) -> None:
        self._length = check_integer("length", length, minimum=0)
        # XLA cannot compile a memory that changes its shape as it fills.
        self.supports_jit = self._length == 0

    @contextlib.contextmanager
    def reading_segments(self) -> Iterator[None]:
        """Returns a scope in which every call continues the previous segment."""
        before, self._is_reading = self._is_reading, True
        try:
            yield
        finally:
            self._is_reading = before

    def reset_memory(self) -> None:
        """Empties the memory."""
        if self.built:
            for buffer in self._memory.values():
                buffer.reset()

    @classmethod
    def from_config(cls, config: Config) -> Any:
        return cls(**keras.saving.deserialize_keras_object(config))

    def _create_memory(self, sizes: Any) -> None:
        """Creates the buffers of the tensors, a dict from their names to last axes."""
        self._memory = {
            name: MemoryBuffer(size, self.compute_dtype, f"memory_{name}")
            for name, size in sizes.items()
        }

    def call(self, inputs: Any, mask: Any = None, training: bool | None = None) -> Any:
        if self.length == 0 or not (training or self._is_reading):
            return self._apply(inputs, None, mask, training)[0]
        batch = ops.shape(inputs)[0]
        memory = {name: buffer.read(batch) for name, buffer in self._memory.items()}
        outputs, states = self._apply(inputs, memory, mask, training)
        for name, new in self._extract_memory(inputs, states).items():
            self._memory[name].write(memory[name], new, self.length)
        return outputs

    def _apply(self, inputs: Any, memory: Any, mask: Any, training: Any) -> Any:
        """Returns the outputs, and the states to remember.

        Args:
            inputs: Tensor `(batch, length, features)`.
            memory: Dict of the remembered tensors, or `None`.
            mask: See the call arguments.
            training: See the call arguments.
        """
        raise NotImplementedError

    def _extract_memory(self, inputs: Any, states: Any) -> dict[str, Any]:
        """Returns the tensors to remember, by their names in `_create_memory`."""
        raise NotImplementedError
