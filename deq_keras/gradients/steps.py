"""Plain steps of f, with a gradient and without."""

from typing import NamedTuple

import tensorflow as tf
from keras import tree

from deq_keras import faults
from deq_keras.draws import derived_seed
from deq_keras.solvers import FixedPointSolver
from deq_keras.structure import Nest


class Steps(NamedTuple):
    """So many steps, perturbed as those of a solver.

    Attributes:
        solver: The `FixedPointSolver` whose noise they have.
        damping: Float in (0, 1]. The weight of the new value.
        num_steps: Integer or int32 scalar tensor.
        max_steps: Integer, which it does not exceed.
        seed: Int32 tensor of shape `(2,)`, or `None`. Draws the noise.
    """

    solver: FixedPointSolver
    damping: float
    num_steps: int | tf.Tensor
    max_steps: int
    seed: tf.Tensor | None

    def free(self, fn: faults.SampleFunction, state: Nest, injection: Nest) -> Nest:
        """Returns the state after them, which carries no gradient."""
        state, injection = tree.map_structure(tf.stop_gradient, (state, injection))

        def body(i: tf.Tensor, state: Nest) -> tuple[tf.Tensor, Nest]:
            return i + 1, self._next(state, fn(state, injection), i)

        _, state = tf.while_loop(
            lambda i, _: i < self.num_steps,
            body,
            (tf.constant(0), state),
            maximum_iterations=self.max_steps,
        )
        return tree.map_structure(tf.stop_gradient, state)

    def graded(
        self, fn: faults.BoundFunction, state: Nest, injection: Nest, remat: bool
    ) -> tuple[Nest, tf.Tensor]:
        """Returns the state after them, and which samples met what is not finite.

        Args:
            fn: The `BoundFunction`.
            state: Nest of `(batch, ...)` tensors.
            injection: Nest of tensors.
            remat: Boolean. Whether f is evaluated again for the gradient.
        """
        evaluate = fn.rematerialized if remat else fn

        def body(
            i: tf.Tensor, state: Nest, failed: tf.Tensor
        ) -> tuple[tf.Tensor, Nest, tf.Tensor]:
            state = self._next(state, evaluate(state, injection), i)
            return i + 1, state, failed | faults.failed_rows(state)

        failed = tf.zeros_like(faults.failed_rows(state))
        _, state, failed = tf.while_loop(
            lambda i, *_: i < self.num_steps,
            body,
            (tf.constant(0), state, failed),
            maximum_iterations=self.max_steps,
        )
        return state, failed

    def _next(self, point: Nest, value: Nest, i: tf.Tensor) -> Nest:
        leaves = []
        for j, (old, new) in enumerate(
            zip(tree.flatten(point), tree.flatten(value), strict=True)
        ):
            if self.damping < 1.0:
                new = old + tf.constant(self.damping, new.dtype) * (new - old)
            seed = None if self.seed is None else derived_seed(self.seed, j)
            leaves.append(self.solver.perturbed(new, i, seed))
        return tree.pack_sequence_as(point, leaves)
