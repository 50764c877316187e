"""The policy for non-finite samples. No other module decides what happens to them.

* A sample with a non-finite input is evaluated with zeros instead, is done after one
  evaluation, and affects nothing. In training, its output is its initial state; at
  inference, its output is NaN.
* A sample for which f becomes non-finite keeps its best finite iterate, and the status
  `DIVERGED`. It does not affect the values of other samples.
* If f is non-finite where a training step differentiates it, the step has no gradient
  through the layer; see `GradientGate`.
* If all samples of a training step fail, the weights are probably corrupt, and the
  output is NaN. A finite output would hide that from the loss.
* An adjoint that overflows in float16 is NaN, so that loss scaling skips the step.
* Statistics ignore non-finite values. The fraction of converged samples shows them.

A comparison with NaN is false, so conditions name what is good, as in `x < limit`, and
are never negated: TensorFlow's graph optimizer turns `~(x < limit)` into `x >= limit`,
which is false for NaN, too.
"""

import functools
from collections.abc import Iterable
from typing import Any

import tensorflow as tf
from keras import tree

from deq_keras.core.custom_gradient import custom_gradient
from deq_keras.core.linearization import Linearization
from deq_keras.core.structure import Nest, check_rows, where_rows

# The status of a failed sample; see `deq_keras.solvers.Solution`.
DIVERGED = 2


def finite_rows(state: Nest) -> tf.Tensor | None:
    """Returns a mask of samples that contain only finite numbers.

    Args:
        state: Nest of `(batch, ...)` tensors.

    Returns:
        Boolean tensor `(batch,)`, or `None` if no leaf is floating-point.
    """
    masks = []
    for leaf in tree.flatten(state):
        if leaf is None:
            continue
        leaf = tf.convert_to_tensor(leaf)
        if leaf.dtype.is_floating:
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


def zero_nonfinite_samples(inputs: Nest) -> tuple[Nest, tf.Tensor | None]:
    """Replaces samples with non-finite inputs by zeros.

    Args:
        inputs: Nest of `(batch, ...)` tensors, some of which can be `None`.

    Returns:
        The inputs, and a mask of usable samples: a Boolean tensor `(batch,)`, or `None`
        if no input is floating-point.
    """
    leaves = tree.flatten(inputs)
    # Only several tensors, or a scalar, can disagree in their number of rows.
    if (len(leaves) > 1 or not leaves[0].shape.rank) and floating(inputs):
        check_rows([leaf for leaf in leaves if leaf is not None], "inputs")
    is_usable = finite_rows(inputs)
    if is_usable is None:
        return inputs, None
    return where_rows(~is_usable, 0.0, inputs), is_usable


def usable_state(initial_state: Nest, otherwise: Nest) -> Nest:
    """Returns a warm start in which `otherwise` replaces non-finite samples."""
    return where_rows(finite_rows(initial_state), initial_state, otherwise)


def propagate_nonfinite(source: tf.Tensor, result: tf.Tensor) -> tf.Tensor:
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


def infinite_where(mask: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns infinity where a mask is true, and 0 elsewhere.

    `tf.debugging.enable_check_numerics` stops a function at a non-finite constant, even
    if nobody reads it. Here only samples that failed overflow.
    """
    largest = tf.where(mask, tf.constant(dtype.max, dtype), tf.zeros((), dtype))
    return largest + largest


def nan_where(mask: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
    """Returns a tensor that is NaN where a mask `(batch,)` or `()` is true."""
    if mask.shape.rank:
        mask = tf.reshape(mask, [-1] + [1] * (tensor.shape.rank - 1))
    infinite = infinite_where(mask, tensor.dtype)
    return tensor + (infinite - infinite)


def mark_unusable_as_diverged(
    solution: Any, start: Nest, is_usable: tf.Tensor | None
) -> Any:
    """Returns a `Solution` in which unusable samples keep their initial state.

    Args:
        solution: The `Solution`.
        start: Nest like its value. The initial state.
        is_usable: The mask that `zero_nonfinite_samples` returned.
    """
    if is_usable is None:
        return solution
    infinite = infinite_where(~is_usable, solution.residual.dtype)
    return solution._replace(
        value=where_rows(~is_usable, start, solution.value),
        point=where_rows(~is_usable, start, solution.point),
        residual=tf.where(is_usable, solution.residual, infinite),
        status=tf.where(is_usable, solution.status, DIVERGED),
    )


def nan_without_result(value: Nest, solution: Any) -> Nest:
    """Returns the output of a layer at inference: NaN for samples without a finite
    evaluation.

    Args:
        value: Nest of `(batch, ...)` tensors.
        solution: The `Solution`.
    """
    # LiteRT stores infinity as the largest number, which overflows here, too.
    twice = 2.0 * solution.residual
    nan, leaves = twice - twice, []
    for leaf in tree.flatten(value):
        rows = tf.reshape(tf.cast(nan, leaf.dtype), [-1] + [1] * (leaf.shape.rank - 1))
        leaves.append(leaf + rows)
    return tree.pack_sequence_as(value, leaves)


def training_output(
    value: Nest, start: Nest, is_usable: tf.Tensor | None, solution: Any
) -> Nest:
    """Returns the output of a layer in training: unusable samples keep their initial
    state; if all samples failed, the output is NaN.

    Args:
        value: Nest of `(batch, ...)` tensors.
        start: Nest like `value`. The initial state.
        is_usable: The mask that `zero_nonfinite_samples` returned.
        solution: The `Solution` that `mark_unusable_as_diverged` returned.
    """
    if is_usable is not None:
        value = where_rows(~is_usable, start, value)
    # A factor, not a `where`: the loss must be NaN, and so must its gradients.
    have_all_failed = tf.reduce_all(has_no_evaluation(solution))
    factor = nan_where(have_all_failed, tf.constant(1.0))
    leaves = []
    for leaf in tree.flatten(value):
        leaves.append(leaf * tf.cast(factor, leaf.dtype))
    return tree.pack_sequence_as(value, leaves)


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
    return nan_where(has_failed(solution), adjoint)


def usable_linearization(
    linearization: Linearization, failed: tf.Tensor
) -> Linearization:
    """Returns a linearization in which failed samples have a residual of zero and zero
    products.

    Args:
        linearization: The `Linearization`.
        failed: Boolean tensor `(batch,)`.
    """
    # A penalty is a mean over all samples. With f(z) = z and J = 0, a failed sample
    # adds zero to it, and no shape depends on how many samples failed.
    point, value, vjp, _ = linearization
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
        is_usable: The mask that `zero_nonfinite_samples` returned.
    """
    if is_usable is None:
        return linearization
    vjp = linearization.vjp
    return linearization._replace(
        vjp=lambda vector: tree.map_structure(
            lambda leaf: nan_where(~is_usable, leaf), vjp(vector)
        )
    )


def finite_total(
    values: Any, dtype: str, axis: int | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the sum of the finite values along an axis, and their number."""
    values = tf.cast(values, dtype)
    is_finite = tf.math.is_finite(values)
    total = tf.reduce_sum(tf.where(is_finite, values, tf.zeros_like(values)), axis)
    return total, tf.reduce_sum(tf.cast(is_finite, dtype), axis)


class GradientGate:
    """Passes gradients on, or replaces all of them by zeros if a sample failed.

    Because 0 * NaN is NaN, one non-finite evaluation turns the gradients of all weights
    into NaN, even if the cotangent of its sample is zero. A gate separates the
    sources of a computation (weights, injection, initial state) from the computation.
    If it is closed, the training step has no gradient through the layer, as loss
    scaling skips a step.

    The forward pass goes through the gate before it knows whether a sample fails.
    Therefore `close_if` is called after the computation, and the backward pass reads
    its result.
    """

    _is_closed: tf.Tensor | None = None

    def close_if(self, failed: tf.Tensor, is_usable: tf.Tensor | None) -> None:
        """Closes the gate if a usable sample failed.

        Args:
            failed: Boolean tensor `(batch,)`.
            is_usable: The mask that `zero_nonfinite_samples` returned.
        """
        if is_usable is not None:
            failed &= is_usable
        self._is_closed = tf.reduce_any(failed)

    def __call__(self, nest: Nest) -> Nest:
        """Returns a nest of tensors whose gradients pass through the gate."""

        def backward(*gradients: tf.Tensor) -> list[tf.Tensor]:
            # A product with zero would keep NaN, hence `where`.
            results = []
            # `tf.gather` downstream yields `IndexedSlices`; densify them.
            for gradient in map(tf.convert_to_tensor, gradients):
                zero = tf.zeros((), gradient.dtype)
                results.append(tf.where(self._is_closed, zero, gradient))
            return results

        def forward(*leaves: tf.Tensor) -> tuple[list[tf.Tensor], Any]:
            return [*map(tf.identity, leaves)], backward

        leaves, watched = tree.flatten(nest), dict[int, tf.Tensor]()
        for i, leaf in enumerate(leaves):
            leaves[i] = leaf = tf.convert_to_tensor(leaf)
            if leaf.dtype.is_floating or leaf.dtype.is_complex:
                watched[i] = leaf
        if watched:
            copies = custom_gradient(forward)(*watched.values())
            for i, leaf in zip(watched, copies, strict=True):
                leaves[i] = leaf
        return tree.pack_sequence_as(nest, leaves)


def floating(tensors: Nest | Iterable[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the floating-point leaves of a nest, without leaves that are `None`."""
    return [leaf for leaf in differentiable(tensors) if leaf.dtype.is_floating]


def differentiable(tensors: Nest | Iterable[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the floating-point and complex leaves of a nest."""
    leaves = [
        tf.convert_to_tensor(leaf) for leaf in tree.flatten(tensors) if leaf is not None
    ]
    return [leaf for leaf in leaves if leaf.dtype.is_floating or leaf.dtype.is_complex]
