"""The columns of a history: states of the past that a solver keeps.

A column is a tensor `(batch, features)`, or a tuple of numbers, `(batch, 1)` each.
"""

from typing import NamedTuple, Self, TypeAlias

import tensorflow as tf

from deq_keras.core.internals import is_compiled_by_xla

Column: TypeAlias = tf.Tensor | tuple[tf.Tensor, ...]


class Rotating(NamedTuple):
    """The last columns that a solver keeps, which rotate by reference, at no cost."""

    columns: tuple[Column, ...]  # newest first

    @property
    def size(self) -> int:
        """The number of columns."""
        return len(self.columns)

    def push(self, column: Column) -> Self:
        """Returns the columns with a new one in front, without the oldest."""
        return self._replace(columns=(column, *self.columns[:-1]))

    def get(self, age: int) -> tf.Tensor:
        """Returns a column of features; age 0 is the newest."""
        return self.columns[age]

    def numbers(self, age: int) -> tuple[tf.Tensor, ...]:
        """Returns a column of numbers; age 0 is the newest."""
        return tuple(self.columns[age])


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

    def push(self, column: Column) -> Self:
        """See `Rotating.push`."""
        newest = self._slot(-1)
        if isinstance(column, tuple):
            column = tf.concat(column, axis=1)
        # XLA writes an array in place. Updating a tensor, it would also read the slot.
        array = tf.TensorArray(column.dtype, self.size).unstack(self.columns)
        columns = array.write(newest, column).stack()
        columns = tf.ensure_shape(columns, self.columns.shape)
        return self._replace(columns=columns, newest=newest)

    def get(self, age: int) -> tf.Tensor:
        """See `Rotating.get`."""
        return tf.gather(self.columns, self._slot(age))

    def numbers(self, age: int) -> tuple[tf.Tensor, ...]:
        """See `Rotating.numbers`."""
        return tuple(tf.split(self.get(age), self.columns.shape[2], axis=1))

    def _slot(self, age: int) -> tf.Tensor:
        return (self.newest - age) % self.size


Columns: TypeAlias = Rotating | Ring


def zero_columns(point: Column, count: int) -> Columns:
    """Returns `count` columns of zeros like a point.

    Args:
        point: A column.
        count: Positive integer.
    """
    if not is_compiled_by_xla():
        return Rotating((tf.nest.map_structure(tf.zeros_like, point),) * count)
    if isinstance(point, tuple):
        point = tf.concat(point, axis=1)
    # XLA would share constant zeros between a solve and its adjoint solve, and keep
    # them during both. It does not know that no number is both NaN and infinite, so
    # these zeros are no constant, and their memory is free after the solve.
    is_both = tf.math.is_nan(point) & tf.math.is_inf(point)
    zero = tf.cast(tf.reduce_any(is_both), point.dtype)
    columns = tf.broadcast_to(zero, tf.concat([[count], tf.shape(point)], axis=0))
    return Ring(tf.ensure_shape(columns, [count, *point.shape]), tf.constant(0))
