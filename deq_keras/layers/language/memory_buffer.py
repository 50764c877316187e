"""Buffer for one tensor that a layer remembers from segment to segment."""

import tensorflow as tf

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

    def __init__(self, size, dtype, name):
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
    def value(self):
        """Returns the remembered tensor `(batch, positions, size)`."""
        return tf.identity(self._variable)

    def reset(self):
        """Empties the buffer."""
        shape = (0, 0, self._variable.shape[-1])
        self._variable.assign(tf.zeros(shape, self._variable.dtype))

    def read(self, batch):
        """Returns the remembered tensor, or `(batch, 0, size)` if the buffer is empty.

        Raises:
            tf.errors.InvalidArgumentError: If its batch size differs.
        """
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

    def write(self, before, new, length):
        """Stores the last `length` positions of `before` and `new` as constants."""
        new = tf.cast(new, self._variable.dtype)
        remembered = tf.concat([before, new], axis=1)[:, -length:]
        self._variable.assign(tf.stop_gradient(remembered))
