"""The policy for non-finite samples. No other module decides what happens to them.

* A sample with a non-finite input is excluded after one evaluation. In training, its
  output is its initial state; at inference, its output is NaN.
* A sample for which f becomes non-finite keeps its best finite iterate.
* Failed samples neither affect other samples nor have a gradient. Because 0 * NaN is
  NaN, f is differentiated at the values of a healthy sample instead.
* If all samples of a training step fail, the weights are probably corrupt, and the
  output is NaN. A finite output would hide that from the loss.
* An adjoint that overflows in float16 is NaN, so that loss scaling skips the step.
* Statistics ignore non-finite values. The fraction of converged samples shows them.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import tensorflow as tf
from keras import ops, tree

from deq_keras.core.custom_gradient import custom_gradient
from deq_keras.core.linearization import Linearization
from deq_keras.core.structure import Nest, check_rows, where_rows

# The status of a failed sample; see `deq_keras.solvers.Solution`.
DIVERGED = 2

# Function of a `FixedPointProblem` and a state that returns a finite value, a mask of
# failed samples, and any other result.
Run: TypeAlias = Callable[[Any, Nest], tuple[Nest, tf.Tensor, Any]]
# Function of the problem and these three results that recomputes the last two.
Measure: TypeAlias = Callable[[Any, Nest, tf.Tensor, Any], tuple[tf.Tensor, Any]]


def finite_rows(state: Nest) -> tf.Tensor | None:
    """Returns a mask of samples that contain only finite numbers.

    Args:
        state: Nest of `(batch, ...)` tensors.

    Returns:
        Boolean tensor `(batch,)`, or `None` if no leaf is floating-point.
    """
    masks = []
    for leaf in floating(state):
        axes = list(range(1, leaf.shape.rank))
        masks.append(tf.reduce_all(tf.math.is_finite(leaf), axis=axes))
    return functools.reduce(tf.logical_and, masks) if masks else None


def failed_rows(state: Nest) -> tf.Tensor:
    """Returns a mask of samples that contain a non-finite number, `(batch,)`.

    Args:
        state: Nest of floating-point `(batch, ...)` tensors.
    """
    is_finite: tf.Tensor = finite_rows(state)
    return ~is_finite


def set_aside(inputs: Nest) -> tuple[Nest, tf.Tensor | None]:
    """Replaces samples with non-finite inputs by zeros.

    Args:
        inputs: Nest of `(batch, ...)` tensors.

    Returns:
        The inputs, and a mask of usable samples: a Boolean tensor `(batch,)`, or `None`
        if no input is floating-point.
    """
    if floating(inputs):
        check_rows(tree.flatten(inputs), "inputs")
    is_usable = finite_rows(inputs)
    if is_usable is None:
        return inputs, None
    return where_rows(~is_usable, 0.0, inputs), is_usable


def usable_state(initial_state: Nest, otherwise: Nest) -> Nest:
    """Returns a warm start in which `otherwise` replaces non-finite samples."""
    return where_rows(finite_rows(initial_state), initial_state, otherwise)


def unless_failed(source: tf.Tensor, result: tf.Tensor) -> tf.Tensor:
    """Returns `result`, but `source` where `source` is non-finite: a finite quotient by
    an overflowed number would hide the overflow."""
    return tf.where(tf.math.is_finite(source), result, source)


def has_failed(solution: Any) -> tf.Tensor:
    """Returns a mask of samples with a non-finite evaluation in a `Solution`."""
    return tf.equal(solution.status, DIVERGED)


def has_no_evaluation(solution: Any) -> tf.Tensor:
    """Returns a mask of samples without any finite evaluation in a `Solution`."""
    # LiteRT stores an infinite constant as the largest number.
    return solution.residual >= solution.residual.dtype.max


def finite_or_first(state: Nest, first: Nest, solution: Any) -> tuple[Nest, tf.Tensor]:
    """Replaces samples that failed in steps from an equilibrium by their first step.

    Args:
        state: Nest of `(batch, ...)` tensors. The last step.
        first: Nest like `state`. The first step, which is finite.
        solution: The `Solution` of the solve.

    Returns:
        The state, and a mask of failed samples `(batch,)`, in the steps or the solve.
    """
    failed = has_failed(solution) | failed_rows(state)
    return where_rows(failed, first, state), failed


def reported(solution: Any, start: Nest, is_usable: tf.Tensor | None) -> Any:
    """Returns a `Solution` in which unusable samples keep their initial state.

    Args:
        solution: The `Solution`.
        start: Nest like its value. The initial state.
        is_usable: The mask that `set_aside` returned.
    """
    if is_usable is None:
        return solution
    infinite = tf.constant(float("inf"), solution.residual.dtype)
    return solution._replace(
        value=where_rows(~is_usable, start, solution.value),
        point=where_rows(~is_usable, start, solution.point),
        residual=tf.where(is_usable, solution.residual, infinite),
        status=tf.where(is_usable, solution.status, DIVERGED),
    )


def output(value: Nest, solution: Any) -> Nest:
    """Returns the output of a layer at inference: NaN for samples without a finite
    evaluation.

    Args:
        value: Nest of `(batch, ...)` tensors.
        solution: The `Solution`.
    """
    return where_rows(has_no_evaluation(solution), float("nan"), value)


def training_output(
    value: Nest, start: Nest, is_usable: tf.Tensor | None, solution: Any
) -> Nest:
    """Returns the output of a layer in training: unusable samples keep their initial
    state; if all samples failed, the output is NaN.

    Args:
        value: Nest of `(batch, ...)` tensors.
        start: Nest like `value`. The initial state.
        is_usable: The mask that `set_aside` returned.
        solution: The `Solution` that `reported` returned.
    """
    if is_usable is not None:
        value = where_rows(~is_usable, start, value)
    have_all_failed = tf.reduce_all(has_no_evaluation(solution))
    factor = tf.where(have_all_failed, float("nan"), 1.0)
    return tree.map_structure(lambda leaf: leaf * tf.cast(factor, leaf.dtype), value)


def without_gradient(failed: tf.Tensor, cotangent: Nest) -> Nest:
    """Returns a cotangent that is zero for failed samples.

    Args:
        failed: Boolean tensor `(batch,)`.
        cotangent: Nest of `(batch, ...)` tensors.
    """
    return where_rows(failed, 0.0, cotangent)


def with_overflow(solution: Any, adjoint: tf.Tensor) -> tf.Tensor:
    """Returns a leaf of an adjoint; in float16, failed samples are NaN.

    In float16 a failure is an overflow. Loss scaling skips a step with non-finite
    gradients and reduces the scale; finite terms computed before the overflow would
    hide it.

    Args:
        solution: The `Solution` of the adjoint equation.
        adjoint: `(batch, ...)` tensor, in the dtype of the cell's output.
    """
    if adjoint.dtype != tf.float16:
        return adjoint
    overflowed: tf.Tensor = where_rows(has_failed(solution), float("nan"), adjoint)
    return overflowed


def usable_linearization(
    linearization: Linearization, failed: tf.Tensor
) -> Linearization:
    """Returns a linearization in which failed samples have a residual of zero and zero
    products.

    Args:
        linearization: The `Linearization`.
        failed: Boolean tensor `(batch,)`.
    """
    point, value, vjp = linearization
    return linearization._replace(
        value=where_rows(failed, point, value),
        vjp=lambda vector: where_rows(failed, 0.0, vjp(vector)),
    )


def undefined_linearization(
    linearization: Linearization, is_usable: tf.Tensor | None
) -> Linearization:
    """Returns a linearization with NaN products for samples with non-finite inputs.

    Args:
        linearization: The `Linearization`.
        is_usable: The mask that `set_aside` returned.
    """
    if is_usable is None:
        return linearization
    nan, vjp = float("nan"), linearization.vjp
    return linearization._replace(
        vjp=lambda vector: where_rows(~is_usable, nan, vjp(vector))
    )


def finite_total(values: Any, dtype: str) -> tuple[Any, Any]:
    """Returns the sum of the finite values, and their number."""
    is_finite = ops.isfinite(values)
    total = ops.sum(ops.cast(ops.where(is_finite, values, 0.0), dtype))
    return total, ops.sum(ops.cast(is_finite, dtype))


def differentiable(
    problem: Any, run: Run, state: Nest, measure: Measure | None = None
) -> tuple[Nest, Any]:
    """Runs a computation with a gradient that failed samples do not affect.

    If no sample fails, the computation is differentiated as usual. If a sample fails,
    the backward pass repeats the computation with a healthy sample in place of failed
    ones, and differentiates the repetition.

    Args:
        problem: A `FixedPointProblem`.
        run: Function of a problem like it and a state, which returns `(value, failed,
            result)`: a nest of finite `(batch, ...)` tensors, a Boolean tensor
            `(batch,)`, and anything else.
        state: Nest of `(batch, ...)` tensors.
        measure: Function of a problem like it, the value, failed samples and the
            result, which recomputes the last two. The backward pass does not repeat
            it, so they have no gradient if a sample fails. Defaults to `None`.

    Returns:
        The value, constant for failed samples, and the result.
    """
    sources = (state, problem.injection, problem.weights)
    run = _traced_once(run)
    switch = _GradientSwitch()
    passed_state, injection, weights = switch.pass_through(sources)
    bound = problem.bound(injection, weights=weights)
    value, failed, result = run(bound, passed_state)
    if measure is not None:
        failed, result = measure(bound, value, failed, result)
    switch.is_off = tf.reduce_any(failed)

    def repeat(
        sources: tuple[Nest, Nest, list[tf.Tensor]], cotangent: list[tf.Tensor]
    ) -> list[tf.Tensor]:
        state, injection, weights = sources
        repeated = problem.bound(injection, weights=weights)
        healthy, state = repeated.with_healthy_rows(failed, state)
        # The cotangent of failed samples is zero, so the healthy samples in their place
        # do not contribute to any gradient.
        watched = floating((state, healthy.injection, weights))
        with tf.GradientTape() as tape:
            tape.watch(watched)
            value, *_ = run(healthy, state)
        return tape.gradient(tree.flatten(value), watched, cotangent, "zero")

    return _Rerouting(failed, repeat, sources).attach(value), result


def _traced_once(run: Run) -> Run:
    """Returns `run` as a function that a graph contains once, for any number of calls.

    In eager mode, `run` is unchanged, so that users can step through their cells.
    """
    if tf.executing_eagerly():
        return run
    traced: list[Callable] = []

    def call(problem: Any, state: Nest) -> tuple[Nest, tf.Tensor, Any]:
        tensors = (state, problem.injection, problem.weights, problem.mask)
        if not traced:

            def of_tensors(
                state: Nest, injection: Nest, weights: list, mask: Any
            ) -> tuple[Nest, tf.Tensor, Any]:
                return run(problem.bound(injection, mask, weights=weights), state)

            traced.append(
                tf.function(of_tensors, autograph=False).get_concrete_function(*tensors)
            )
        return traced[0](*tensors)

    return call


class _GradientSwitch:
    """Passes gradients on until a tensor, which may be computed later, turns it off."""

    is_off: tf.Tensor = None

    def pass_through(self, nest: Nest) -> Nest:
        passed = iter(custom_gradient(self._forward)(*floating(nest)))
        return tree.map_structure(
            lambda tensor: next(passed) if tensor.dtype.is_floating else tensor, nest
        )

    def _forward(self, *tensors: tf.Tensor) -> tuple[list[tf.Tensor], Callable]:
        return [tf.identity(tensor) for tensor in tensors], self._backward

    def _backward(self, *gradients: tf.Tensor) -> list[tf.Tensor]:
        passed = [tf.convert_to_tensor(gradient) for gradient in gradients]
        return [
            tf.where(self.is_off, tf.zeros((), gradient.dtype), gradient)
            for gradient in passed
        ]


class _Rerouting:
    """Differentiates a repetition instead of the value if any sample failed.

    Args:
        failed: Boolean tensor `(batch,)`.
        repeat: Function of a nest like `sources` and the cotangents of the leaves of
            the value. It repeats the computation without failed samples, and returns
            the gradients of the floating-point leaves of the sources.
        sources: Nest of tensors that the value was computed from.
    """

    def __init__(
        self,
        failed: tf.Tensor,
        repeat: Callable[[Any, list[tf.Tensor]], list[tf.Tensor]],
        sources: Nest,
    ) -> None:
        self.failed = failed
        self.repeat = repeat
        self.sources = sources
        self.some_failed = tf.reduce_any(failed) & ~tf.reduce_all(failed)

    def attach(self, value: Nest) -> Nest:
        """Returns the value with that gradient."""
        sources, leaves = tree.flatten(self.sources), tree.flatten(value)
        leaves = custom_gradient(self._forward)(*sources, *leaves)
        return tree.pack_sequence_as(value, list(leaves))

    def _forward(self, *leaves: tf.Tensor) -> tuple[list[tf.Tensor], Callable]:
        num_sources = len(tree.flatten(self.sources))
        value = [tf.identity(leaf) for leaf in leaves[num_sources:]]
        return value, functools.partial(self._backward, leaves[:num_sources])

    def _backward(
        self, sources: tuple[tf.Tensor, ...], *cotangent: tf.Tensor
    ) -> list[tf.Tensor | None]:
        passed = [tf.convert_to_tensor(leaf) for leaf in cotangent]
        gradients, passed = tf.cond(
            self.some_failed,
            lambda: (
                self._gradients_of_repetition(sources, passed),
                tree.map_structure(tf.zeros_like, passed),
            ),
            lambda: (tree.map_structure(tf.zeros_like, floating(sources)), passed),
        )
        gradients = iter(gradients)
        of_sources = [
            next(gradients) if leaf.dtype.is_floating else None for leaf in sources
        ]
        return of_sources + passed

    def _gradients_of_repetition(
        self, sources: tuple[tf.Tensor, ...], cotangent: list[tf.Tensor]
    ) -> list[tf.Tensor]:
        gradients = self.repeat(
            tree.pack_sequence_as(self.sources, list(sources)),
            without_gradient(self.failed, cotangent),
        )
        # `tf.gather` yields `IndexedSlices`, the other branch dense tensors.
        return [tf.convert_to_tensor(gradient) for gradient in gradients]


def floating(tensors: Nest | Iterable[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the floating-point leaves of a nest."""
    leaves = map(tf.convert_to_tensor, tree.flatten(tensors))
    return [leaf for leaf in leaves if leaf.dtype.is_floating]
