"""Plain steps of f, with and without a gradient."""

import math
from typing import NamedTuple

import tensorflow as tf
from keras import tree

from deq_keras.core import checkpointing, graphs, nonfinite
from deq_keras.core.problem import FixedPointProblem
from deq_keras.core.random import fold_in, normal_like, uniform
from deq_keras.core.structure import (
    Nest,
    StateStructure,
    interpolate,
    squared_norm,
    where_rows,
)
from deq_keras.solvers import FixedPointSolver


class Steps(NamedTuple):
    """A number of steps of f, with the noise of a solver.

    Attributes:
        solver: The `FixedPointSolver` that adds the noise.
        damping: Float in (0, 1]. The weight of the new value.
        num_steps: Integer or int32 scalar tensor.
        max_steps: Integer. Upper bound of `num_steps`.
        seed: Int32 tensor of shape `(2,)`. Seeds the noise. `None`: no noise.
        tol: Float >= 0, or `None`. The steps stop early if the root mean square of the
            relative residuals of the batch is at most `tol`. `None`: takes all steps.
    """

    solver: FixedPointSolver
    damping: float
    num_steps: int | tf.Tensor
    max_steps: int
    seed: tf.Tensor | None
    tol: float | None

    def free(
        self, problem: FixedPointProblem, state: Nest
    ) -> tuple[Nest, int | tf.Tensor]:
        """Returns the state after the steps, without a gradient, and the number."""
        state, injection = tree.map_structure(
            tf.stop_gradient, (state, problem.injection)
        )
        problem = problem.bound(injection)

        def body(
            i: tf.Tensor, state: Nest, residual: tf.Tensor
        ) -> tuple[tf.Tensor, Nest, tf.Tensor]:
            value = problem(state)
            return i + 1, self._next(state, value, i), self._residual(state, value)

        count, state, _ = graphs.while_loop(
            lambda i, _, residual: self._continues(i, residual),
            body,
            (tf.constant(0), state, tf.constant(math.inf)),
            self.max_steps,
        )
        state = tree.map_structure(tf.stop_gradient, state)
        return state, self.num_steps if self.tol is None else count

    def graded(
        self,
        problem: FixedPointProblem,
        state: Nest,
        interval: int | None,
    ) -> tuple[Nest, tf.Tensor, int | tf.Tensor]:
        """Returns the state after the steps, a mask of non-finite samples, and the
        number of steps.

        Args:
            problem: The `FixedPointProblem`.
            state: Nest of `(batch, ...)` tensors.
            interval: Positive integer. The gradient stores the state of every
                `interval`-th step, and recomputes the others. `None`: stores all.
        """

        def body(
            i: tf.Tensor, state: Nest, failed: tf.Tensor, residual: tf.Tensor
        ) -> tuple[tf.Tensor, Nest, tf.Tensor, tf.Tensor]:
            value = problem(state)
            residual = self._residual(state, value)
            state = self._next(state, value, i)
            return i + 1, state, failed | nonfinite.failed_rows(state), residual

        failed = tf.zeros_like(nonfinite.failed_rows(state))
        count, state, failed, _ = checkpointing.loop(
            lambda i, _, failed, residual: self._continues(i, residual),
            body,
            (tf.constant(0), state, failed, tf.constant(math.inf)),
            self.max_steps,
            interval,
            problem.sources,
        )
        num_steps = self.num_steps if self.tol is None else count
        return state, failed, num_steps

    def _continues(self, i: tf.Tensor, residual: tf.Tensor) -> tf.Tensor:
        has_steps = i < self.num_steps
        return has_steps if self.tol is None else has_steps & (residual > self.tol)

    def _residual(self, point: Nest, value: Nest) -> tf.Tensor:
        """Returns the root mean square of the relative residuals of finite samples."""
        if self.tol is None:
            return tf.constant(math.inf)
        point, value = tree.map_structure(tf.stop_gradient, (point, value))
        structure = StateStructure(value)
        after = structure.to_matrix(value)
        scale = squared_norm(after)
        squares = squared_norm(after - structure.to_matrix(point))
        squares = tf.where(scale > 0, squares / scale, squares)
        total, count = nonfinite.finite_total(squares, "float32")
        # TensorFlow would also trace the gradient of this loop variable.
        return tf.stop_gradient(tf.sqrt(tf.math.divide_no_nan(total, count)))

    def _next(self, point: Nest, value: Nest, i: tf.Tensor) -> Nest:
        leaves = []
        for j, (old, new) in enumerate(
            zip(tree.flatten(point), tree.flatten(value), strict=True)
        ):
            if self.damping < 1.0:
                new = interpolate(old, new, self.damping)
            seed = None if self.seed is None else fold_in(self.seed, j)
            leaves.append(self.solver.perturbed(new, i, seed))
        return tree.pack_sequence_as(point, leaves)


class FreePhase(NamedTuple):
    """The samples after their free steps.

    Attributes:
        state: Nest of `(batch, ...)` tensors. Samples without free steps keep their
            initial state, with its gradient.
        failed: Boolean tensor `(batch,)`. Samples with non-finite steps. They keep
            their initial state.
        num_evaluations: Int32 tensor `(batch,)`.
    """

    state: Nest
    failed: tf.Tensor
    num_evaluations: tf.Tensor


class FreeSteps(NamedTuple):
    """Steps without a gradient that a fraction of the samples takes first.

    Attributes:
        steps: The `Steps`.
        fraction: Float in [0, 1]. The expected fraction of samples that take them.
        noise: Float >= 0. Standard deviation of the noise that is added after the
            steps, relative to the root mean square of the features of each position.
        seed: Int32 tensor of shape `(2,)`, or `None` if nothing is random.
    """

    steps: Steps
    fraction: float
    noise: float
    seed: tf.Tensor | None

    def run(self, problem: FixedPointProblem, initial_state: Nest) -> FreePhase:
        """Returns the `FreePhase` of samples that start at `initial_state`."""
        start = _untouched(tree.map_structure(tf.stop_gradient, initial_state))
        num_steps = self.steps.num_steps
        if self.fraction == 0.0 or (not tf.is_tensor(num_steps) and num_steps == 0):
            return start._replace(state=initial_state)
        if self.fraction == 1.0:
            phase = self._solved(problem, start.state)
        else:
            leaf = tree.flatten(initial_state)[0]
            count, probability = self._count(leaf.shape[0] or tf.shape(leaf)[0])
            draw = uniform((), fold_in(self.seed, 0))
            phase = tf.cond(
                (tf.convert_to_tensor(num_steps) > 0) & (draw < probability),
                lambda: self._solved_for_some(problem, start, count),
                lambda: start,
            )
        # The steps have no gradient, so TensorFlow need not differentiate them.
        phase = tree.map_structure(tf.stop_gradient, phase)
        state = where_rows(phase.num_evaluations > 0, phase.state, initial_state)
        return phase._replace(state=state)

    def _count(
        self, batch_size: int | tf.Tensor
    ) -> tuple[int | tf.Tensor, float | tf.Tensor]:
        """Returns the number of samples that take the steps, and a probability.

        With this probability, `count` samples take the steps, otherwise none: shapes
        must not depend on random numbers. The expected fraction is `fraction`.
        """
        if isinstance(batch_size, int):
            count = math.ceil(self.fraction * batch_size)
            return count, self.fraction * batch_size / max(count, 1)
        expected = self.fraction * tf.cast(batch_size, tf.float32)
        count = tf.math.ceil(expected)
        return tf.cast(count, tf.int32), expected / tf.maximum(count, 1.0)

    def _solved_for_some(
        self,
        problem: FixedPointProblem,
        start: FreePhase,
        count: int | tf.Tensor,
    ) -> FreePhase:
        batch_size = tf.shape(start.failed)[0]
        order = tf.argsort(uniform([batch_size], fold_in(self.seed, 1)))
        chosen = order[:count]
        if not problem.knows_rows:  # The injection of single samples is unknown.
            is_chosen = tf.reduce_any(tf.range(batch_size)[:, None] == chosen, axis=1)
            solved = self._solved(problem, start.state)
            return where_rows(is_chosen, solved, start)
        rows = tree.map_structure(lambda leaf: tf.gather(leaf, chosen), start.state)
        solved = self._solved(problem.rows(chosen), rows)
        return tree.map_structure(
            lambda leaf, rows: tf.tensor_scatter_nd_update(leaf, chosen[:, None], rows),
            start,
            solved,
        )

    def _solved(self, problem: FixedPointProblem, state: Nest) -> FreePhase:
        solved, count = self.steps.free(problem, state)
        failed = nonfinite.failed_rows(solved)
        return FreePhase(
            where_rows(failed, state, self._perturbed(solved)),
            failed,
            tf.fill(tf.shape(failed), count),
        )

    def _perturbed(self, state: Nest) -> Nest:
        if self.noise == 0.0:
            return state
        noise = normal_like(state, fold_in(self.seed, 3))
        return tree.map_structure(
            lambda leaf, noise: leaf + self.noise * _scale(leaf) * noise, state, noise
        )


def _scale(leaf: tf.Tensor) -> tf.Tensor:
    """Returns the root mean square of each position, which is 0 at padding."""
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
