"""Steps without gradient, which a share of the samples takes before those with one."""

import math
from typing import NamedTuple

import tensorflow as tf
from keras import tree

from deq_keras import faults
from deq_keras.draws import derived_seed, normal_like
from deq_keras.gradients.steps import Steps
from deq_keras.structure import Nest, where_rows, where_rows_if_any


class FreePhase(NamedTuple):
    """Where the samples are after their free steps.

    Attributes:
        state: Nest of `(batch, ...)` tensors. That of samples which took none of them
            is connected to where they started.
        failed: Boolean tensor `(batch,)`. Whether they led to what is not finite; then
            the sample stands where it started.
        num_evaluations: Int32 tensor `(batch,)`.
    """

    state: Nest
    failed: tf.Tensor
    num_evaluations: tf.Tensor


class FreeSteps(NamedTuple):
    """The free steps of one training step.

    Attributes:
        steps: The `Steps`.
        share: Float in [0, 1]. The expected share of the samples that take them.
        noise: Float >= 0. The standard deviation of what is added to where they led,
            relative to the root mean square of the features of each position.
        seed: Int32 tensor of shape `(2,)`, or `None` where nothing is drawn.
    """

    steps: Steps
    share: float
    noise: float
    seed: tf.Tensor | None

    def run(
        self, fn: faults.SampleFunction, initial_state: Nest, injection: Nest
    ) -> FreePhase:
        """Returns the `FreePhase` of the samples that start at `initial_state`."""
        start = _untouched(initial_state)
        num_steps = self.steps.num_steps
        if self.share == 0.0 or (not tf.is_tensor(num_steps) and num_steps == 0):
            return start
        has_steps = tf.convert_to_tensor(num_steps) > 0
        if self.share == 1.0:
            return tf.cond(
                has_steps,
                lambda: self._solved(fn, initial_state, injection),
                lambda: start,
            )
        leaf = tree.flatten(initial_state)[0]
        count, probability = self._count(leaf.shape[0] or tf.shape(leaf)[0])
        draw = tf.random.stateless_uniform((), derived_seed(self.seed, 0))
        return tf.cond(
            has_steps & (draw < probability),
            lambda: self._solved_for_some(fn, start, injection, count),
            lambda: start,
        )

    def _count(
        self, batch_size: int | tf.Tensor
    ) -> tuple[int | tf.Tensor, float | tf.Tensor]:
        """Returns how many samples take the steps, if any do, a number that the shapes
        alone decide; and the probability that makes it the share on average."""
        if isinstance(batch_size, int):
            count = math.ceil(self.share * batch_size)
            return count, self.share * batch_size / max(count, 1)
        expected = self.share * tf.cast(batch_size, tf.float32)
        count = tf.math.ceil(expected)
        return tf.cast(count, tf.int32), expected / tf.maximum(count, 1.0)

    def _solved_for_some(
        self,
        fn: faults.SampleFunction,
        start: FreePhase,
        injection: Nest,
        count: int | tf.Tensor,
    ) -> FreePhase:
        batch_size = tf.shape(start.failed)[0]
        order = tf.argsort(
            tf.random.stateless_uniform([batch_size], derived_seed(self.seed, 1))
        )
        chosen = order[:count]
        if not fn.knows_rows:  # Nobody knows which parts of the injection are theirs.
            is_chosen = tf.reduce_any(tf.range(batch_size)[:, None] == chosen, axis=1)
            solved = self._solved(fn, start.state, injection)
            return where_rows(is_chosen, solved, start)
        rows = tree.map_structure(lambda leaf: tf.gather(leaf, chosen), start.state)
        solved = self._solved(fn, rows, fn.rows_of(injection, chosen))
        return tree.map_structure(
            lambda leaf, rows: tf.tensor_scatter_nd_update(leaf, chosen[:, None], rows),
            start,
            solved,
        )

    def _solved(
        self, fn: faults.SampleFunction, state: Nest, injection: Nest
    ) -> FreePhase:
        solved = self.steps.free(fn, state, injection)
        failed = faults.failed_rows(solved)
        start = tree.map_structure(tf.stop_gradient, state)
        return FreePhase(
            where_rows_if_any(failed, start, self._perturbed(solved)),
            failed,
            tf.fill(tf.shape(failed), self.steps.num_steps),
        )

    def _perturbed(self, state: Nest) -> Nest:
        if self.noise == 0.0:
            return state
        noise = normal_like(state, derived_seed(self.seed, 3))
        return tree.map_structure(
            lambda leaf, noise: leaf + self.noise * _scale(leaf) * noise, state, noise
        )


def _scale(leaf: tf.Tensor) -> tf.Tensor:
    """Returns the root mean square of each position: padding, where it is 0, stays."""
    axis = [-1] if leaf.shape.rank > 1 else []
    squares = tf.square(tf.cast(leaf, tf.float32))
    mean = tf.reduce_mean(squares, axis, keepdims=True)
    return tf.cast(tf.sqrt(mean), leaf.dtype)


def _untouched(state: Nest) -> FreePhase:
    batch_size = tf.shape(tree.flatten(state)[0])[:1]
    return FreePhase(
        tree.map_structure(tf.identity, state),
        tf.zeros(batch_size, tf.bool),
        tf.zeros(batch_size, tf.int32),
    )
