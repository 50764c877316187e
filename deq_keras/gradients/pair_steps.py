"""The invertible steps of a pair of states, forward and backward.

A pair (y, z) has two states of the problem. A step changes one after the other, each by
f of the other one, so that every half is an affine map of the state it changes:

    y' = (1 - b) y + b f(z)        z' = (1 - b) z + b f(y')
    z = (z' - b f(y')) / (1 - b)   y = (y' - b f(z)) / (1 - b)

1. Forward (`PairSteps`): take steps until all samples are done; store the pair before
   every K-th step. A sample that is done keeps its pair.
2. Backward (`InverseSteps`): from the last pair, invert one step after the other by the
   second line, and read a stored pair wherever there is one.
3. Both evaluations of f that an inverse step needs anyway are taped. With cotangents
   (p, q) of (y', z'), a step passes on, where v J is a product with df/dz,

       p <- p + b q J(y')     q <- (1 - b) q + b p J(z)     p <- (1 - b) p

   and adds b q df/du(y') and b p df/du(z) to the cotangents of the sources u.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
from keras import tree

from deq_keras.core import graphs, nonfinite
from deq_keras.core.custom_gradient import custom_gradient
from deq_keras.core.problem import FixedPointProblem
from deq_keras.core.structure import Nest, StateStructure, where_rows, wide_dtype
from deq_keras.solvers import DIVERGED, MAX_ITER, Solution
from deq_keras.solvers.stopping import Evaluation, StoppingRule, first_status


class Pairs(NamedTuple):
    """The variables of the forward loop, with B samples of D features."""

    num_steps: tf.Tensor  # () int32
    y: tf.Tensor  # (B, D)
    z: tf.Tensor  # (B, D)
    value: tf.Tensor  # (B, D), f(z)
    error: tf.Tensor  # (B,)
    status: tf.Tensor  # (B,) int64, MAX_ITER while the sample is active
    sample_steps: tf.Tensor  # (B,) int64
    sample_evaluations: tf.Tensor  # (B,) int64
    progress: Any  # memory of the stopping rule
    stored: tuple[tf.TensorArray, tf.TensorArray]  # y and z of every K-th step


class PairSteps(NamedTuple):
    """The steps of the pair, forward.

    Attributes:
        problem: The `FixedPointProblem`, without gradient.
        rule: The `StoppingRule`.
        beta: Float in (0, 1).
        interval: Positive integer K. Steps between two stored pairs.
        max_steps: Positive integer, or int32 scalar tensor.
    """

    problem: FixedPointProblem
    rule: StoppingRule
    beta: float
    interval: int
    max_steps: int | tf.Tensor

    @property
    def structure(self) -> StateStructure:
        return self.rule.structure

    def run(self, max_steps: int | tf.Tensor) -> tuple[Pairs, Solution]:
        """Returns the last pairs, and the `Solution`.

        Args:
            max_steps: Integer or int32 scalar tensor, at most the attribute.
        """
        max_steps = tf.minimum(tf.maximum(max_steps, 1), self.max_steps)
        is_vectorized = graphs.is_vectorized()
        pairs = graphs.while_loop(
            lambda pairs: (
                (pairs.num_steps < max_steps)
                & (is_vectorized | tf.reduce_any(tf.equal(pairs.status, MAX_ITER)))
            ),
            lambda pairs: (self._next(pairs),),
            (self._first(),),
            None if tf.is_tensor(self.max_steps) else self.max_steps,
        )[0]
        solution = Solution(
            value=self.structure.to_state(pairs.value),
            point=self.structure.to_state(pairs.z),
            residual=pairs.error,
            status=tf.cast(pairs.status, tf.int32),
            num_evaluations=tf.cast(pairs.sample_evaluations, tf.int32),
            batch_evaluations=2 * pairs.num_steps + 1,
            trace=pairs.error[None][:0],
        )
        return pairs, solution

    def mix(self, old: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
        """Returns (1 - beta) old + beta value."""
        return (1.0 - self.beta) * old + self.beta * value

    def unmix(self, new: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
        """Returns `old`, given new = (1 - beta) old + beta value."""
        return (new - self.beta * value) / (1.0 - self.beta)

    def _evaluate(self, point: tf.Tensor) -> Evaluation:
        value = self.problem(self.structure.to_state(point))
        return Evaluation.of(self.structure, point, value)

    def _first(self) -> Pairs:
        point = self.structure.to_matrix(self.structure.template)
        evaluation = self._evaluate(point)
        status = first_status(evaluation.squared_norm[:, 0], self.problem.is_usable)
        error, status, progress = self.rule.judge(evaluation, status, self.rule.start())
        has_failed = tf.equal(status, DIVERGED)
        return Pairs(
            num_steps=tf.constant(0),
            y=point,
            z=point,
            value=where_rows(has_failed, point, evaluation.value),
            error=error + nonfinite.infinite_where(has_failed, error.dtype),
            status=status,
            sample_steps=tf.zeros_like(status),
            sample_evaluations=tf.ones_like(status),
            progress=progress,
            stored=(self._array(point), self._array(point)),
        )

    def _array(self, first: tf.Tensor) -> tf.TensorArray:
        array = tf.TensorArray(
            first.dtype,
            (self.max_steps + self.interval - 1) // self.interval,
            clear_after_read=False,
            element_shape=first.shape,
        )
        # XLA learns the batch size here. It must not differ between two branches.
        return array.write(0, first)

    def _next(self, pairs: Pairs) -> Pairs:
        stored = tf.cond(
            tf.equal(pairs.num_steps % self.interval, 0),
            lambda: self._with(pairs),
            lambda: pairs.stored,
        )
        y = self.mix(pairs.y, pairs.value)
        z = self.mix(pairs.z, self._evaluate(y).value)
        evaluation = self._evaluate(z)
        is_active = tf.equal(pairs.status, MAX_ITER)
        error, status, progress = self.rule.judge(
            evaluation, pairs.status, pairs.progress
        )
        # Samples that converged, or whose step is not finite, keep their pair.
        is_taken = is_active & ~tf.equal(status, DIVERGED)
        new = (y, z, evaluation.value, error)
        y, z, value, error = where_rows(
            ~is_taken, (pairs.y, pairs.z, pairs.value, pairs.error), new
        )
        return Pairs(
            num_steps=pairs.num_steps + 1,
            y=y,
            z=z,
            value=value,
            error=error,
            status=status,
            sample_steps=pairs.sample_steps + tf.cast(is_taken, status.dtype),
            sample_evaluations=pairs.sample_evaluations
            + 2 * tf.cast(is_active, status.dtype),
            progress=progress,
            stored=stored,
        )

    def _with(self, pairs: Pairs) -> tuple[tf.TensorArray, tf.TensorArray]:
        index = pairs.num_steps // self.interval
        of_y, of_z = pairs.stored
        return of_y.write(index, pairs.y), of_z.write(index, pairs.z)


class _Backward(NamedTuple):
    """The variables of the backward loop, with B samples of D features."""

    num_steps: tf.Tensor  # () int32, remaining steps
    y: tf.Tensor  # (B, D)
    z: tf.Tensor  # (B, D)
    of_y: tf.Tensor  # (B, D), cotangent
    of_z: tf.Tensor  # (B, D), cotangent
    of_sources: list[tf.Tensor]  # sums of cotangents


class InverseSteps(NamedTuple):
    """The steps of the pair, backward.

    Attributes:
        steps: The `PairSteps`, whose problem has gradients.
        pairs: The last `Pairs`.
        value: Nest z.
        sources: List of the tensors that f reads; see `FixedPointProblem.sources`.
    """

    steps: PairSteps
    pairs: Pairs
    value: Nest
    sources: list[tf.Tensor]

    def attach(self, initial_state: Nest) -> Nest:
        """Returns the value, with the gradient of the steps."""
        leaves = custom_gradient(self._forward)(
            *tree.flatten(initial_state), *self.sources
        )
        return tree.pack_sequence_as(self.value, list(leaves))

    def _forward(self, *inputs: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], Callable]:
        value = tuple(tf.identity(leaf) for leaf in tree.flatten(self.value))
        return value, functools.partial(self._backward, inputs)

    def _backward(
        self, inputs: tuple[tf.Tensor, ...], *cotangent: tf.Tensor
    ) -> list[tf.Tensor]:
        structure = self.steps.structure
        # `tf.gather` downstream yields `IndexedSlices`; densify them.
        leaves = [tf.convert_to_tensor(leaf) for leaf in cotangent]
        of_z = structure.to_matrix(tree.pack_sequence_as(self.value, leaves))
        # A stored pair does not depend on later pairs. Evaluations in parallel could
        # start from it before their cotangents exist, and would fill the memory.
        end = graphs.while_loop(
            lambda state: state.num_steps > 0,
            lambda state: (self._previous(state),),
            (
                _Backward(
                    self._num_steps(),
                    self.pairs.y,
                    self.pairs.z,
                    of_y=tf.zeros_like(of_z),
                    of_z=of_z,
                    of_sources=[_wide_zeros(source) for source in self.sources],
                ),
            ),
            None if tf.is_tensor(self.steps.max_steps) else self.steps.max_steps,
        )[0]
        of_start = tree.flatten(structure.to_state(end.of_y + end.of_z))
        return [
            tf.cast(gradient, source.dtype)
            for gradient, source in zip(
                [*of_start, *end.of_sources], inputs, strict=True
            )
        ]

    def _num_steps(self) -> tf.Tensor:
        """Returns the largest number of steps of a sample."""
        if graphs.is_vectorized():
            return tf.convert_to_tensor(self.steps.max_steps)
        return tf.cast(tf.reduce_max(self.pairs.sample_steps), tf.int32)

    def _previous(self, state: _Backward) -> _Backward:
        """Inverts one step, and passes the cotangents through it.

        A sample that took fewer steps waits for its last one.
        """
        steps, step = self.steps, state.num_steps - 1
        is_active = tf.cast(step, tf.int64) < self.pairs.sample_steps
        rows = tf.cast(is_active, state.y.dtype)[:, None]
        is_stored = tf.equal(step % steps.interval, 0)
        index = step // steps.interval

        def previous(
            array: tf.TensorArray, new: tf.Tensor, value: tf.Tensor
        ) -> tf.Tensor:
            old = tf.cond(
                is_stored,
                lambda: array.read(index),
                lambda: steps.unmix(new, value),
            )
            return where_rows(~is_active, new, old)

        value, vjp = self._linearize(state.y)
        z = previous(self.pairs.stored[1], state.z, value)
        of_point, *products = vjp(steps.beta * rows * state.of_z)
        of_y = state.of_y + of_point
        of_sources = _add(state.of_sources, products)
        # Otherwise the evaluation could start before the last product frees its memory.
        with tf.control_dependencies([of_y, *of_sources]):
            z = tf.identity(z)
        value, vjp = self._linearize(z)
        y = previous(self.pairs.stored[0], state.y, value)
        of_point, *products = vjp(steps.beta * rows * of_y)
        # 1 - beta * rows would not round like the factor of the forward step.
        factor = tf.constant(1.0 - steps.beta, rows.dtype)
        kept = tf.where(is_active[:, None], factor, tf.ones_like(factor))
        return _Backward(
            num_steps=step,
            y=y,
            z=z,
            of_y=kept * of_y,
            of_z=kept * state.of_z + of_point,
            of_sources=_add(of_sources, products),
        )

    def _linearize(
        self, point: tf.Tensor
    ) -> tuple[tf.Tensor, Callable[[tf.Tensor], list[tf.Tensor]]]:
        """Returns f at a `(batch, features)` matrix, and its product with the
        Jacobians of the state and the sources."""
        structure, sources = self.steps.structure, self.sources
        state = structure.to_state(point)
        watched = [*tree.flatten(state), *sources]
        size = len(watched) - len(sources)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(watched)
            value = self.steps.problem(state)

        def vjp(vector: tf.Tensor) -> list[tf.Tensor]:
            cotangent = tree.flatten(structure.to_state(vector))
            products = tape.gradient(tree.flatten(value), watched, cotangent, "zero")
            products = [tf.convert_to_tensor(product) for product in products]
            of_state = tree.pack_sequence_as(state, products[:size])
            return [structure.to_matrix(of_state), *products[size:]]

        return structure.to_matrix(value), vjp


def _wide_zeros(source: tf.Tensor) -> tf.Tensor:
    """Returns zeros like a source, in a dtype in which sums of many terms are exact."""
    dtype = source.dtype
    return tf.zeros_like(source, dtype if dtype.is_complex else wide_dtype(dtype))


def _add(totals: list[tf.Tensor], terms: list[tf.Tensor]) -> list[tf.Tensor]:
    pairs = zip(totals, terms, strict=True)
    return [total + tf.cast(term, total.dtype) for total, term in pairs]
