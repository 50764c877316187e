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


class Slots(NamedTuple):
    """Columns that are numbered, in one variable of a loop.

    An array costs only what is written into it. XLA cannot differentiate a loop over
    arrays, and LiteRT and ONNX do not support them: there, the columns are a tensor.
    """

    columns: tf.Tensor | tf.TensorArray  # (slots, B, D), or (B, D) each

    @classmethod
    def zeros(
        cls, point: tf.Tensor, count: int | tf.Tensor, allows_arrays: bool = True
    ) -> Self:
        """Returns `count` columns of zeros like a point.

        Args:
            point: Tensor `(batch, features)`.
            count: Positive integer, or int32 scalar tensor.
            allows_arrays: Boolean. Whether the columns may be in an array.
        """
        by_xla = is_compiled_by_xla()
        if tf.is_tensor(count) or (allows_arrays and not by_xla):
            array = tf.TensorArray(
                point.dtype, count, clear_after_read=False, element_shape=point.shape
            )
            # This makes the batch size known, also if no column is written later.
            return cls(array.write(0, tf.zeros_like(point)))
        zero = tf.zeros((), point.dtype)
        if by_xla:
            # XLA would share constant zeros between a solve and its adjoint solve, and
            # keep them during both. It does not know that no number is both NaN and
            # infinite, so this zero is not constant, and its memory is free afterwards.
            is_both = tf.math.is_nan(point) & tf.math.is_inf(point)
            zero = tf.cast(tf.reduce_any(is_both), point.dtype)
        columns = tf.broadcast_to(zero, tf.concat([[count], tf.shape(point)], axis=0))
        return cls(tf.ensure_shape(columns, [count, *point.shape]))

    @property
    def size(self) -> int | tf.Tensor:
        """The number of columns."""
        if isinstance(self.columns, tf.TensorArray):
            return self.columns.size()
        return self.columns.shape[0]

    def read(self, slot: tf.Tensor) -> tf.Tensor:
        """Returns a column."""
        if isinstance(self.columns, tf.TensorArray):
            return self.columns.read(slot)
        return tf.gather(self.columns, slot)

    def write(self, slot: tf.Tensor, column: tf.Tensor) -> Self:
        """Returns the columns with another one in a slot."""
        if isinstance(self.columns, tf.TensorArray):
            return self._replace(columns=self.columns.write(slot, column))
        if not is_compiled_by_xla():
            rows = tf.reshape(slot, [1, 1])
            columns = tf.tensor_scatter_nd_update(self.columns, rows, column[None])
            return self._replace(columns=columns)
        # XLA writes an array in place. Updating a tensor, it would also read the slot.
        array = tf.TensorArray(column.dtype, self.size).unstack(self.columns)
        columns = array.write(slot, column).stack()
        return self._replace(columns=tf.ensure_shape(columns, self.columns.shape))

    def take(self, rows: tf.Tensor, num_columns: tf.Tensor) -> Self:
        """Returns some rows of the first columns, outside XLA."""
        if not isinstance(self.columns, tf.TensorArray):
            return self._replace(columns=tf.gather(self.columns, rows, axis=1))
        slots = Slots.zeros(tf.gather(self.read(0), rows), self.size)
        _, slots = tf.while_loop(
            lambda i, _: i < num_columns,
            lambda i, slots: (i + 1, slots.write(i, tf.gather(self.read(i), rows))),
            (0, slots),
        )
        return slots


class Ring(NamedTuple):
    """Columns in fixed slots: the newest column replaces the oldest.

    With `Rotating`, XLA would copy the columns in each evaluation.
    """

    slots: Slots
    newest: tf.Tensor  # () int32, a slot

    @property
    def size(self) -> int:
        """See `Rotating.size`."""
        return self.slots.size

    def push(self, column: Column) -> Self:
        """See `Rotating.push`."""
        newest = self._slot(-1)
        if isinstance(column, tuple):
            column = tf.concat(column, axis=1)
        return self._replace(slots=self.slots.write(newest, column), newest=newest)

    def get(self, age: int) -> tf.Tensor:
        """See `Rotating.get`."""
        return self.slots.read(self._slot(age))

    def numbers(self, age: int) -> tuple[tf.Tensor, ...]:
        """See `Rotating.numbers`."""
        column = self.get(age)
        return tuple(tf.split(column, column.shape[1], axis=1))

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
    return Ring(Slots.zeros(point, count), tf.constant(0))
