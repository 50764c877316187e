"""The spectral radius of df/dz at an equilibrium."""

import functools
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from deq_keras.core import nonfinite
from deq_keras.core.checks import check_count, check_non_negative
from deq_keras.core.internals import is_compiled_by_xla
from deq_keras.core.linearization import Linearization, matrix_vjp
from deq_keras.core.random import normal
from deq_keras.core.rounding import full_float32, product_epsilon
from deq_keras.core.structure import Nest, StateStructure
from deq_keras.diagnostics.arnoldi import Arnoldi, begin
from deq_keras.diagnostics.subject import (
    encoder,
    linearize_solution,
    single_layer,
)

# Vectors of a Krylov space at which it is restarted, vectors that a restart keeps, and
# iterations between two estimates. More vectors cost memory. Fewer can miss the largest
# of many eigenvalues near a circle: 36 and 24 missed it in 0 of 40 random matrices of
# size 100 to 400; 24 and 12 occasionally missed one, by 1 to 3 % of its modulus.
_SLOTS = 36
_KEPT = 24
_CHECK_EVERY = 6
# Power of an eigenvalue's sensitivity in its error estimate. First-order theory yields
# 1, but the projected problem underestimates the sensitivity of nearly parallel
# eigenvectors: with 1, blocks of 8 equal eigenvalues would wrongly count as converged.
_CAUTION = 1.5
_JITTER = 16


class SpectralRadius(NamedTuple):
    """The result of `spectral_radius`, per sample.

    Attributes:
        value: Float tensor `(batch,)`. |lambda| of the dominant eigenvalue. NaN if
            the Jacobian is not finite.
        residual: Float tensor `(batch,)`. |J^T w - lambda w| / |lambda|, with the unit
            eigenvector w. Zero for an exact eigenpair.
        converged: Boolean tensor `(batch,)`. Whether the expected relative error of
            `value` is at most `tol`. The error is estimated from the residual, the
            rounding of the products and the sensitivity of the eigenvalue. An
            unconverged `value` may be far too large or too small.
        num_iterations: Int32 scalar. Number of iterations.
    """

    value: tf.Tensor
    residual: tf.Tensor
    converged: tf.Tensor
    num_iterations: tf.Tensor


@tf.autograph.experimental.do_not_convert
@full_float32()
def spectral_radius(
    subject: Any,
    inputs: Nest | None = None,
    max_iter: int = 300,
    tol: float = 1e-3,
    seed: int = 0,
) -> SpectralRadius:
    """Estimates the spectral radius of df/dz for every sample.

    Runs a restarted Arnoldi iteration with J^T, which computes the eigenvalues of its
    projection on a space of up to 36 vectors v, J^T v, (J^T)^2 v, ... It finds complex
    pairs, the pair +r and -r, and several eigenvalues of equal modulus. A single vector
    (the Rayleigh quotient of the reference, locuslab/deq of Bai et al., 2021) would
    rotate between them forever. An iteration costs one vector-Jacobian product, and the
    basis uses the memory of 37 states.

    A small residual alone proves little: eigenvalues of a non-normal Jacobian change by
    much more than its error, in a Jordan block of size n by the n-th root. A sample
    converges when the residual times the sensitivity of the eigenvalue is small and two
    estimates, 6 iterations apart, agree. Jacobians with many eigenvalues on one circle,
    and highly non-normal or nilpotent ones, do not converge. The estimate can miss a
    slightly larger eigenvalue that is barely represented in the space.

    Args:
        subject: A `Linearization` of f at the equilibrium, whose samples must not
            depend on each other; a `DEQ` layer; or a functional or sequential model
            with one. Each result depends only on its own sample.
        inputs: Inputs of the layer or model, such as arrays. The radius is measured at
            their equilibria. Defaults to `None`, for a `Linearization`.
        max_iter: Positive integer. Budget of iterations. Defaults to `300`.
        tol: Non-negative float. Expected relative error of a converged sample. The loop
            stops when every sample has converged or cannot. Defaults to `1e-3`.
        seed: Integer. Seed of the first vector, which all samples share. Defaults to
            `0`.

    Returns:
        A `SpectralRadius`.

    Raises:
        ValueError: If a model does not have exactly one `DEQ` layer, `inputs` and the
            subject do not fit, or XLA compiles the call.

    Example:

    >>> layer = deq_keras.layers.DEQ(deq_keras.layers.DenseCell(4))
    >>> model = keras.Sequential([layer, keras.layers.Dense(1)])
    >>> x = np.ones((2, 3), "float32")
    >>> _ = model(x)
    >>> deq_keras.diagnostics.spectral_radius(model, x).value.shape
    TensorShape([2])
    >>> rotation = 0.9 * tf.constant([[0.0, -1.0], [1.0, 0.0]])
    >>> result = deq_keras.diagnostics.spectral_radius(
    ...     deq_keras.diagnostics.linearize(lambda z: z @ rotation, tf.zeros((1, 2))))
    >>> round(float(result.value[0]), 3)
    0.9

    Reference:

    - Arnoldi (1951), "The principle of minimized iterations in the solution of the
      matrix eigenvalue problem".
    - Sorensen (1992), "Implicit application of polynomial filters in a k-step Arnoldi
      method": the restart.
    """
    # An iteration, for all samples together:
    # 1. Extend the Krylov space by one product with J^T.
    # 2. After every sixth product, compute the dominant eigenvalue of the projection of
    #    J^T on the space, its residual and its expected error. A sample converges if
    #    the error is small and the previous estimate was the same.
    # 3. If the space is full, restart it: keep the 24-dimensional Krylov space of a
    #    vector without components along the small eigenvalues. It needs no product.
    max_iter = check_count("max_iter", max_iter)
    tol = check_non_negative("tol", tol)
    if isinstance(subject, Linearization) != (inputs is None):
        raise ValueError(
            "`inputs` must be given for a DEQ layer or a model, and only for them. "
            "Pass `max_iter` by name. Received: a subject of type "
            f"{type(subject).__name__}, inputs={inputs!r}."
        )
    linearization = subject
    if inputs is not None:
        layer = single_layer(subject)
        linearization = linearize_solution(layer, encoder(subject)(inputs))[1]
    structure = StateStructure(linearization.point)
    product = functools.partial(matrix_vjp, linearization, structure)
    rounding = product_epsilon(leaf.dtype for leaf in structure.leaves)
    point = structure.to_matrix(linearization.point)
    # All samples start with the same vector.
    start = normal(tf.shape(point)[1:], [seed, 0], dtype=point.dtype)
    start = tf.ensure_shape(tf.broadcast_to(start, tf.shape(point)), point.shape)
    nan = tf.zeros_like(point[:, 0]) + float("nan")
    first = SpectralRadius(
        nan, nan, tf.zeros_like(nan, tf.bool), num_iterations=tf.constant(0)
    )

    def iterate(
        result: SpectralRadius, space: Arnoldi, is_active: tf.Tensor
    ) -> tuple[SpectralRadius, Arnoldi, tf.Tensor]:
        space, count = space.extend(product), result.num_iterations + 1
        result = result._replace(num_iterations=count)
        is_due = (count == max_iter) | (space.size % _CHECK_EVERY == 0)
        return tf.cond(
            is_due | tf.reduce_all(_is_closed(space) | ~is_active),
            lambda: _update_estimates(result, space, is_active, tol, rounding),
            lambda: (result, space, is_active),
        )

    # `is_active`: whether more iterations may help a sample.
    result, _, _ = tf.while_loop(
        lambda result, space, is_active: tf.reduce_any(is_active),
        iterate,
        (first, begin(start, min(_SLOTS, max_iter)), tf.ones_like(nan, tf.bool)),
        maximum_iterations=max_iter,
    )
    return result


def _is_closed(space: Arnoldi) -> tf.Tensor:
    """Returns whether the space cannot grow: it is invariant or non-finite."""
    length = tf.reduce_sum(tf.abs(space.link), axis=1)  # (B,)
    # Grappler would turn `~(length > 0)` into `length <= 0`, which is false for NaN.
    return tf.equal(length, 0) | ~tf.math.is_finite(length)


def _update_estimates(
    last: SpectralRadius,
    space: Arnoldi,
    is_active: tf.Tensor,
    tol: float,
    rounding: float,
) -> tuple[SpectralRadius, Arnoldi, tf.Tensor]:
    """Updates the estimates and restarts a full space."""
    is_finite = nonfinite.finite_rows(space.coefficients)
    is_used = (is_finite & is_active)[:, None, None]
    projection = tf.where(is_used, space.projection, 0.0)
    # Noise slightly above the rounding error: exactly equal eigenvalues would have an
    # infinite sensitivity.
    noise = np.random.default_rng(0).standard_normal(projection.shape[1:])
    eps = np.finfo(projection.dtype.as_numpy_dtype).eps
    projection = tf.cast(projection, tf.float64) * (1 + _JITTER * eps * noise)
    if is_compiled_by_xla():
        raise ValueError(
            "`spectral_radius` computes eigenvalues, which XLA does not support. Call "
            "it outside of functions with `jit_compile=True`, such as in a callback."
        )
    # A GPU would factorize the small matrices of a batch one by one.
    with tf.device("CPU:0"):
        values = tf.linalg.eigvals(tf.cast(projection, tf.complex128))  # (B, slots)
    num_kept = min(_KEPT, projection.shape[1])
    value, residual, error = (
        tf.where(is_finite, tf.cast(number, last.value.dtype), float("nan"))
        for number in _dominant(values, projection, space.link, rounding)
    )
    is_closed = _is_closed(space)
    is_steady = is_closed | (tf.abs(value - last.value) <= tol * value)
    converged = is_steady & (error <= tol * value) & tf.math.is_finite(value)
    # For a zero Jacobian, the eigenvalue zero is exact.
    residual = tf.where(residual > 0, residual / value, residual)
    result = SpectralRadius(
        value=tf.where(is_active, value, last.value),
        residual=tf.where(is_active, residual, last.residual),
        converged=last.converged | (is_active & converged),
        num_iterations=last.num_iterations,
    )
    space = tf.cond(
        tf.equal(space.size, projection.shape[1]),
        lambda: space.restart(_filter(values, projection, num_kept), num_kept),
        lambda: space,
    )
    return result, space, is_active & ~(converged | is_closed)


def _dominant(
    values: tf.Tensor, projection: tf.Tensor, link: tf.Tensor, rounding: float
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the largest |Ritz value|, its residual and its expected error."""
    moduli = tf.abs(values)
    value = tf.gather(values, tf.argmax(moduli, axis=1), axis=1, batch_dims=1)
    # The unit eigenvectors x and y are the singular vectors of A - lambda I whose
    # singular value is zero up to rounding. They exist for defective matrices, too.
    identity = tf.eye(tf.shape(projection)[1], dtype=values.dtype)
    with tf.device("CPU:0"):
        _, left, right = tf.linalg.svd(
            tf.cast(projection, values.dtype) - value[:, None, None] * identity
        )
    left, right = left[..., -1], right[..., -1]
    # An error E of the matrix changes the eigenvalue by up to |E| / |y^H x|.
    overlap = tf.abs(tf.reduce_sum(tf.math.conj(left) * right, axis=1))
    sensitivity = 1 / tf.maximum(overlap, np.finfo("float64").eps)
    residual = tf.abs(tf.reduce_sum(tf.cast(link, right.dtype) * right, axis=1))
    floor = rounding * tf.norm(projection, axis=(1, 2))
    error = (residual + floor) * sensitivity**_CAUTION
    return tf.reduce_max(moduli, axis=1), residual, error


def _filter(values: tf.Tensor, projection: tf.Tensor, num_kept: int) -> tf.Tensor:
    """Returns the first vector of the space without its components along the small Ritz
    values, `(B, slots)`: the product of (H - lambda I) over these values lambda."""
    slots = projection.shape[1]
    moduli, order = tf.math.top_k(tf.abs(values), slots)
    shifts = tf.gather(values, order, batch_dims=1)
    # Keep or drop a conjugate pair as a whole.
    is_dropped = moduli < (1 - 1e-8) * moduli[:, num_kept - 1 : num_kept]
    matrix = tf.cast(projection, values.dtype)

    def drop(i: tf.Tensor, vector: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        shift = tf.gather(shifts, i, axis=1)[:, None]
        image = tf.linalg.matvec(matrix, vector) - shift * vector
        norm = tf.cast(tf.norm(tf.abs(image), axis=1, keepdims=True), image.dtype)
        image = tf.math.divide_no_nan(image, norm)
        return i - 1, tf.where(tf.gather(is_dropped, i, axis=1)[:, None], image, vector)

    first = tf.zeros_like(values) + tf.one_hot(0, slots, dtype=values.dtype)
    _, vector = tf.while_loop(lambda i, _: i >= num_kept, drop, (slots - 1, first))
    return tf.math.real(vector)
