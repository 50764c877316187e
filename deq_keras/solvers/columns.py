"""The last states that a solver keeps, newest first."""

from typing import NamedTuple, Self, TypeAlias

import tensorflow as tf

from deq_keras.core import graphs


class Rotating(NamedTuple):
    """Columns that rotate by reference, at no cost."""

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
        columns = tf.tensor_scatter_nd_update(self.columns, [[newest]], column[None])
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
    columns = (tf.zeros_like(point),) * count
    if graphs.is_compiled_by_xla():
        return Ring(tf.stack(columns), tf.constant(0))
    return Rotating(columns)
