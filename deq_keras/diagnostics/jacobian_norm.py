"""The Frobenius norm of df/dz at an equilibrium."""

import functools

import tensorflow as tf

from deq_keras.core.checks import check_count
from deq_keras.core.linearization import Linearization, matrix_vjp
from deq_keras.core.random import normal
from deq_keras.core.structure import StateStructure


@tf.autograph.experimental.do_not_convert
def jacobian_norm(
    linearization: Linearization, num_probes: int = 16, seed: int = 0
) -> tf.Tensor:
    """Estimates |df/dz|_F for every sample.

    Computes sqrt(mean over probes v ~ N(0, I) of |v^T J|^2), whose square is unbiased.
    The relative standard deviation of the square is at most sqrt(2 / num_probes).

    Args:
        linearization: A `Linearization` of f at the equilibrium. Samples must not
            depend on each other.
        num_probes: Positive integer. Number of probes, each of which costs one
            vector-Jacobian product. Defaults to `16`.
        seed: Integer. Seed of the probes. Defaults to `0`.

    Returns:
        Float tensor `(batch,)`. Non-finite where the Jacobian is non-finite.

    Example:

    >>> linearization = deq_keras.diagnostics.linearize(
    ...     lambda z: 0.5 * z, tf.zeros((1, 400)))
    >>> abs(float(deq_keras.diagnostics.jacobian_norm(linearization)[0]) - 10.0) < 1.0
    True
    """
    num_probes = check_count("num_probes", num_probes)
    structure = StateStructure(linearization.point)
    point = structure.to_matrix(linearization.point)

    product = functools.partial(matrix_vjp, linearization, structure)

    def add_probe(i: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        probe = normal(tf.shape(point), [seed, i], dtype=structure.dtype)
        return i + 1, total + tf.reduce_sum(tf.square(product(probe)), axis=1)

    _, total = tf.while_loop(
        lambda i, total: i < num_probes, add_probe, (0, tf.zeros_like(point[:, 0]))
    )
    return tf.sqrt(total / num_probes)
