"""What happens to a sample that is not finite, before, in and after a solve."""

from typing import Any

import tensorflow as tf
from keras import ops, tree

from deq_keras.structure import Nest, where_rows, where_rows_if_any

# The status of a sample that failed, one of those of `deq_keras.solvers.Solution`.
DIVERGED = 2


def finite_rows(state: Nest) -> tf.Tensor | None:
    """Tells which samples of a nest hold only finite numbers.

    Returns:
        Boolean tensor `(batch,)`, or `None` where no leaf is floating-point.
    """
    masks = []
    for leaf in tree.flatten(state):
        leaf = tf.convert_to_tensor(leaf)
        if leaf.dtype.is_floating:
            axes = list(range(1, leaf.shape.rank))
            masks.append(tf.reduce_all(tf.math.is_finite(leaf), axis=axes))
    return tf.reduce_all(tf.stack(masks), axis=0) if masks else None


def failed_rows(state: Nest) -> tf.Tensor:
    """Tells which samples of a state hold a number that is not finite, `(batch,)`."""
    is_finite: tf.Tensor = finite_rows(state)  # The leaves of a state are floating.
    return ~is_finite


def set_aside(inputs: Nest) -> tuple[Nest, tf.Tensor | None]:
    """Zeroes the samples with non-finite inputs.

    Args:
        inputs: Nest of `(batch, ...)` tensors.

    Returns:
        The inputs, and which samples are usable: a Boolean tensor `(batch,)`, or `None`
        where no input is floating-point.
    """
    is_usable = finite_rows(inputs)
    if is_usable is None:
        return inputs, None
    return where_rows_if_any(~is_usable, 0.0, inputs), is_usable


def usable_start(initial_state: Nest, otherwise: Nest) -> Nest:
    """Returns a warm start, in which samples that are not finite start `otherwise`."""
    return where_rows(finite_rows(initial_state), initial_state, otherwise)


def without_unusable(
    status: tf.Tensor, num_evaluations: tf.Tensor, is_usable: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns status and evaluations at the start of a solve: samples that were set
    aside fail at their first evaluation."""
    return (
        tf.where(is_usable, status, DIVERGED),
        tf.where(is_usable, num_evaluations, 1),
    )


def improves(error: tf.Tensor, best_error: tf.Tensor | None) -> tf.Tensor:
    """Tells of which samples an iterate is the best; one that is not finite never is.

    Args:
        error: Float tensor `(batch,)`. The residuals of the iterate.
        best_error: Float tensor `(batch,)`. The smallest residuals before, infinite
            where there was none. `None`: the last finite iterate counts as the best.
    """
    return tf.math.is_finite(error) if best_error is None else error < best_error


def with_failed(
    status: tf.Tensor, is_searched: tf.Tensor, error: tf.Tensor
) -> tf.Tensor:
    """Returns the status, `DIVERGED` for searched samples of a non-finite residual."""
    return tf.where(is_searched & not_finite(error), DIVERGED, status)


def unless_failed(source: tf.Tensor, result: tf.Tensor) -> tf.Tensor:
    """Returns `result`, but where `source` is not finite, `source`: a quotient by what
    overflowed is finite, and would hide it."""
    return tf.where(tf.math.is_finite(source), result, source)


def has_failed(solution: Any) -> tf.Tensor:
    """Tells of which samples of a `Solution` an evaluation was not finite."""
    return tf.equal(solution.status, DIVERGED)


def has_no_evaluation(solution: Any) -> tf.Tensor:
    """Tells of which samples of a `Solution` no evaluation was finite."""
    # LiteRT takes the largest number for a constant that is infinite.
    return solution.residual >= solution.residual.dtype.max


def finite_or_first(state: Nest, first: Nest, solution: Any) -> tuple[Nest, tf.Tensor]:
    """Returns what steps from an equilibrium led to, but the first step, at which f is
    finite, for samples that failed on the way or in the solve; and which did.

    Args:
        state: Nest of `(batch, ...)` tensors. The last step.
        first: Nest like it. The first step.
        solution: The `Solution` of the solve.
    """
    failed, is_finite = has_failed(solution), finite_rows(state)
    if is_finite is not None:
        failed |= ~is_finite
    return where_rows_if_any(failed, first, state), failed


def reported(solution: Any, start: Nest, is_usable: tf.Tensor | None) -> Any:
    """Returns a `Solution` in which samples that were set aside are at their start.

    Args:
        solution: The `Solution`.
        start: Nest like its value.
        is_usable: What `set_aside` returned.
    """
    if is_usable is None:
        return solution
    infinite = tf.constant(float("inf"), solution.residual.dtype)
    return solution._replace(
        value=where_rows_if_any(~is_usable, start, solution.value),
        point=where_rows_if_any(~is_usable, start, solution.point),
        residual=tf.where(is_usable, solution.residual, infinite),
        status=tf.where(is_usable, solution.status, DIVERGED),
    )


def output(value: Nest, solution: Any) -> Nest:
    """Returns the output of a layer at inference: NaN for samples without a finite
    evaluation, whatever the other samples of the batch do.

    Args:
        value: Nest of `(batch, ...)` tensors.
        solution: Its `Solution`.
    """
    return where_rows_if_any(has_no_evaluation(solution), float("nan"), value)


def training_output(
    value: Nest, start: Nest, is_usable: tf.Tensor | None, solution: Any
) -> Nest:
    """Returns the output of a layer in training: samples that were set aside keep their
    initial state, unless every sample failed.

    Args:
        value: Nest of `(batch, ...)` tensors.
        start: Nest like it, for samples that were set aside.
        is_usable: What `set_aside` returned.
        solution: The `Solution` that `reported` returned.
    """
    if is_usable is not None:
        value = where_rows_if_any(~is_usable, start, value)
    return tf.cond(
        tf.reduce_all(has_no_evaluation(solution)),
        lambda: tree.map_structure(
            lambda leaf: leaf * tf.constant(float("nan"), leaf.dtype), value
        ),
        lambda: value,
    )


def without_gradient(failed: tf.Tensor, cotangent: Nest) -> Nest:
    """Returns a cotangent that is zero for samples that failed.

    Args:
        failed: Boolean tensor `(batch,)`.
        cotangent: Nest of `(batch, ...)` tensors.
    """
    return where_rows_if_any(failed, 0.0, cotangent)


def with_overflow(solution: Any, adjoint: tf.Tensor) -> tf.Tensor:
    """Returns a leaf of an adjoint, in float16 NaN for samples that failed.

    What fails there has overflowed. Loss scaling skips a step that it sees to be not
    finite, and scales less; finite terms before the overflow would hide it from that.

    Args:
        solution: The `Solution` of the adjoint equation.
        adjoint: `(batch, ...)` tensor, in the dtype of the cell's output.
    """
    if adjoint.dtype != tf.float16:
        return adjoint
    overflowed: tf.Tensor = where_rows(has_failed(solution), float("nan"), adjoint)
    return overflowed


def not_finite(numbers: tf.Tensor) -> tf.Tensor:
    """Tells which numbers of a tensor, one for each sample, are not finite."""
    return ~tf.math.is_finite(numbers)


def nan_unless(is_finite: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    """Returns `number`, NaN for samples whose measurement met what is not finite."""
    return tf.where(is_finite, number, float("nan"))


def finite_total(values: Any, dtype: str) -> tuple[Any, Any]:
    """Returns the sum of those values that are finite, and how many they are."""
    is_finite = ops.isfinite(values)
    total = ops.sum(ops.cast(ops.where(is_finite, values, 0.0), dtype))
    return total, ops.sum(ops.cast(is_finite, dtype))
