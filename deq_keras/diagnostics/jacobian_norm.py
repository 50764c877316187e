"""The Frobenius norm of df/dz at an equilibrium."""

import tensorflow as tf

from deq_keras.checks import check_count
from deq_keras.structure import StateStructure


def jacobian_norm(linearization, num_probes=16, seed=0):
    """Estimates |df/dz|_F for every sample.

    sqrt(mean over probes v ~ N(0, I) of |v^T J|^2), whose square is unbiased. The
    relative standard deviation of the square is at most sqrt(2 / num_probes).

    Args:
        linearization: a `Linearization` of f at the equilibrium. Samples must not
            depend on each other.
        num_probes: int >= 1. One vector-Jacobian product each. Defaults to `16`.
        seed: int. Draws the probes. Defaults to `0`.

    Returns:
        Float tensor `(batch,)`, not finite where the Jacobian is not.

    Example:

    >>> from deq_keras.linearization import linearize
    >>> linearization = linearize(lambda z: 0.5 * z, tf.zeros((1, 400)))
    >>> abs(float(deq_keras.diagnostics.jacobian_norm(linearization)[0]) - 10.0) < 1.0
    True
    """
    num_probes = check_count("num_probes", num_probes)
    structure = StateStructure(linearization.point)
    point = structure.to_matrix(linearization.point)

    def add_probe(i, total):
        probe = tf.random.stateless_normal(
            tf.shape(point), [seed, i], dtype=structure.dtype
        )
        vector = structure.to_state(tf.ensure_shape(probe, point.shape))
        product = structure.to_matrix(linearization.vjp(vector))
        return i + 1, total + tf.reduce_sum(tf.square(product), axis=1)

    _, total = tf.while_loop(
        lambda i, total: i < num_probes, add_probe, (0, tf.zeros_like(point[:, 0]))
    )
    return tf.sqrt(total / num_probes)
