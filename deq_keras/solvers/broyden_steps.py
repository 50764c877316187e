"""The steps that Broyden's method has taken, and the direction that they give."""

from typing import NamedTuple, Self

import tensorflow as tf

from deq_keras.structure import squared_norm

# Stored steps are swept in blocks of this many, and blocks without a step are skipped.
_BLOCK = 4


class StepSlots(NamedTuple):
    """A number of steps that is known when the solve is traced, the newest first.

    When they are full, the method starts anew: old steps stay in their slots and are
    passed over.
    """

    steps: tuple[tf.Tensor, ...]  # (B, D) each; zero where none is
    squared_norms: tuple[tf.Tensor, ...]  # (B, 1) each

    @classmethod
    def empty(cls, point: tf.Tensor, slots: int) -> Self:
        return cls(
            steps=(tf.zeros_like(point),) * slots,
            squared_norms=(tf.zeros_like(point[:, :1]),) * slots,
        )

    def sweep(
        self, direction: tf.Tensor, num_evaluations: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns d after its updates by all steps, and (s . d) / |s|^2 of the last."""
        num_steps = (num_evaluations - 1) % len(self.steps)
        for start in reversed(range(0, len(self.steps), _BLOCK)):
            oldest = min(start + _BLOCK, len(self.steps)) - 1
            newest = max(start, 1)
            if oldest >= newest:
                direction = tf.cond(
                    num_steps > newest,
                    lambda d=direction, i=oldest, j=newest: self._sweep_block(
                        d, num_steps, i, j
                    ),
                    lambda d=direction: d,
                )
        return direction, self._coefficient(direction, num_steps, 0)

    def push(self, step: tf.Tensor, num_evaluations: tf.Tensor) -> "StepSlots":
        """Returns the steps with one more."""
        del num_evaluations
        return StepSlots(
            steps=(step, *self.steps[:-1]),
            squared_norms=(squared_norm(step), *self.squared_norms[:-1]),
        )

    def take(self, rows: tf.Tensor, num_steps: tf.Tensor) -> "StepSlots":
        """Returns the steps of some samples."""
        del num_steps
        return StepSlots(
            steps=tuple(tf.gather(step, rows) for step in self.steps),
            squared_norms=tuple(tf.gather(norm, rows) for norm in self.squared_norms),
        )

    def _sweep_block(
        self, direction: tf.Tensor, num_steps: tf.Tensor, oldest: int, newest: int
    ) -> tf.Tensor:
        for i in range(oldest, newest - 1, -1):
            coefficient = self._coefficient(direction, num_steps, i)
            direction += coefficient * self.steps[i - 1]
        return direction

    def _coefficient(
        self, direction: tf.Tensor, num_steps: tf.Tensor, i: int
    ) -> tf.Tensor:
        is_there = num_steps > i
        return _coefficient(direction, self.steps[i], self.squared_norms[i], is_there)


class StepArray(NamedTuple):
    """As many steps as a budget asks for that is known only when the solve runs, the
    oldest first."""

    steps: tf.TensorArray  # (B, D) each
    squared_norms: tf.TensorArray  # (B, 1) each

    @classmethod
    def empty(cls, point: tf.Tensor, max_iter: tf.Tensor) -> Self:
        size = tf.maximum(max_iter - 1, 1)
        return cls(
            _array(point.dtype, size, point.shape),
            _array(point.dtype, size, [point.shape[0], 1]),
        )

    def sweep(
        self, direction: tf.Tensor, num_evaluations: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """See `StepSlots.sweep`."""
        newest = num_evaluations - 2

        def update(i: tf.Tensor, direction: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            coefficient = self._coefficient(direction, i)
            return i + 1, direction + coefficient * self.steps.read(i + 1)

        _, direction = tf.while_loop(
            lambda i, direction: i < newest, update, (0, direction)
        )
        return direction, tf.cond(
            newest >= 0,
            lambda: self._coefficient(direction, newest),
            lambda: tf.zeros_like(direction[:, :1]),
        )

    def push(self, step: tf.Tensor, num_evaluations: tf.Tensor) -> "StepArray":
        """See `StepSlots.push`."""
        index = num_evaluations - 1
        return StepArray(
            self.steps.write(index, step),
            self.squared_norms.write(index, squared_norm(step)),
        )

    def take(self, rows: tf.Tensor, num_steps: tf.Tensor) -> "StepArray":
        """See `StepSlots.take`."""
        return StepArray(
            _taken(self.steps, rows, num_steps),
            _taken(self.squared_norms, rows, num_steps),
        )

    def _coefficient(self, direction: tf.Tensor, i: tf.Tensor) -> tf.Tensor:
        return _coefficient(
            direction, self.steps.read(i), self.squared_norms.read(i), True
        )


def _coefficient(
    direction: tf.Tensor,
    step: tf.Tensor,
    squared_norm: tf.Tensor,
    is_there: bool | tf.Tensor,
) -> tf.Tensor:
    """(s . d) / |s|^2, which is zero for a step that is not there, or is zero."""
    product = tf.reduce_sum(step * direction, axis=1, keepdims=True)
    is_there = (squared_norm > 0) & is_there
    return tf.where(is_there, product, 0.0) / tf.where(is_there, squared_norm, 1.0)


def _array(
    dtype: tf.DType, size: tf.Tensor, shape: tf.TensorShape | list[int | None]
) -> tf.TensorArray:
    return tf.TensorArray(dtype, size, clear_after_read=False, element_shape=shape)


def _taken(
    array: tf.TensorArray, rows: tf.Tensor, num_written: tf.Tensor
) -> tf.TensorArray:
    """Returns an array of some rows of the first elements of another."""
    shape = [None, *array.element_shape[1:]]
    _, taken = tf.while_loop(
        lambda i, _: i < num_written,
        lambda i, taken: (i + 1, taken.write(i, tf.gather(array.read(i), rows))),
        (0, _array(array.dtype, array.size(), shape)),
    )
    return taken
