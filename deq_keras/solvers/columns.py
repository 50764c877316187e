"""The columns of a history: states of the past that a solver keeps."""

from typing import NamedTuple, Self, TypeAlias

import tensorflow as tf

from deq_keras.core import graphs


class Rotating(NamedTuple):
    """The last states that a solver keeps, which rotate by reference, at no cost."""

    columns: tuple[tf.Tensor, ...]  # (B, D) each, newest first

    @property
    def size(self) -> int:
        """The number of columns."""
        return len(self.columns)

    def push(self, column: tf.Tensor) -> Self:
        """Returns the columns with a new one in front, without the oldest."""
        return self._replace(columns=(column, *self.columns[:-1]))

    def get(self, age: int) -> tf.Tensor:
        """Returns a column, `(batch, features)`; age 0 is the newest."""
        return self.columns[age]


class Ring(NamedTuple):
    """Columns in fixed slots: the newest column replaces the oldest.

    With `Rotating`, XLA would copy the columns in each evaluation.
    """

    columns: tf.Tensor  # (slots, B, D)
    newest: tf.Tensor  # () int32, a slot

    @property
    def size(self) -> int:
        """See `Rotating.size`."""
        size: int = self.columns.shape[0]
        return size

    def push(self, column: tf.Tensor) -> Self:
        """See `Rotating.push`."""
        newest = self._slot(-1)
        # XLA writes an array in place. Updating a tensor, it would also read the slot.
        array = tf.TensorArray(column.dtype, self.size).unstack(self.columns)
        columns = array.write(newest, column).stack()
        columns = tf.ensure_shape(columns, self.columns.shape)
        return self._replace(columns=columns, newest=newest)

    def get(self, age: int) -> tf.Tensor:
        """See `Rotating.get`."""
        return tf.gather(self.columns, self._slot(age))

    def _slot(self, age: int) -> tf.Tensor:
        return (self.newest - age) % self.size


Columns: TypeAlias = Rotating | Ring


def zero_columns(point: tf.Tensor, count: int) -> Columns:
    """Returns `count` columns of zeros like a point.

    Args:
        point: Tensor `(batch, features)`.
        count: Positive integer.
    """
    if not graphs.is_compiled_by_xla():
        return Rotating((tf.zeros_like(point),) * count)
    # XLA would share constant zeros between a solve and its adjoint solve, and keep
    # them during both. It does not know that no number is both NaN and infinite.
    is_both = tf.math.is_nan(point) & tf.math.is_inf(point)
    zero = tf.cast(tf.reduce_any(is_both), point.dtype)
    columns = tf.broadcast_to(zero, tf.concat([[count], tf.shape(point)], axis=0))
    return Ring(tf.ensure_shape(columns, [count, *point.shape]), tf.constant(0))
