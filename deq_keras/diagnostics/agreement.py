"""How alike what was found from several starts is."""

import itertools

import tensorflow as tf

from deq_keras.core.structure import Nest, StateStructure


def alignment_score(states: Nest, others: Nest) -> tf.Tensor:
    """Returns the cosine of the angle between two states of each sample.

    Between states that were found from two starts it is the asymptotic alignment of
    Anil et al. (2022): 1 where the same state was found, or a multiple of it. It is
    near 1, too, where all states have a large part in common: look at the
    `answer_agreement` beside it.

    Args:
        states: Nest of floating-point tensors `(batch, ...)`.
        others: Nest like it.

    Returns:
        Float tensor `(batch,)`, float32 or better. 1 for two states that are zero, 0
        where one is.

    Example:

    >>> one, two = np.array([[3.0, 4.0]]), np.array([[4.0, 3.0]])
    >>> round(float(deq_keras.diagnostics.alignment_score(one, two)[0]), 3)
    0.96

    Reference:

    - Anil et al. (2022), "Path Independent Equilibrium Models Can Better Exploit
      Test-Time Computation".
    """
    structure = StateStructure(states)
    structure.check(others, "`others`")
    one, two = structure.to_matrix(states), structure.to_matrix(others)
    norms = tf.norm(one, axis=1), tf.norm(two, axis=1)
    product = tf.reduce_sum(one * two, axis=1)
    cosine = tf.math.divide_no_nan(product, norms[0] * norms[1])
    are_zero = tf.logical_and(norms[0] == 0, norms[1] == 0)
    return tf.where(are_zero, tf.ones_like(cosine), cosine)


def answer_agreement(answers: tf.Tensor) -> tf.Tensor:
    """Returns the share of the pairs of starts that led to the same answer.

    Args:
        answers: Integer tensor `(starts, batch, ...)`. What was answered from each of
            at least two starts.

    Returns:
        Float32 tensor `(batch,)` from 0 to 1. Two answers are the same if they are at
        every position.

    Raises:
        ValueError: If there are fewer than two initial states.

    Example:

    >>> answers = np.array([[[1, 0], [2, 2]], [[1, 0], [2, 1]], [[1, 0], [2, 1]]])
    >>> deq_keras.diagnostics.answer_agreement(answers).numpy().round(3)
    array([1.   , 0.333], dtype=float32)
    """
    answers = tf.convert_to_tensor(answers)
    if answers.shape.rank < 2 or answers.shape[0] is None or answers.shape[0] < 2:
        raise ValueError(
            "`answers` must be those from at least two starts, an integer tensor "
            f"(starts, batch, ...). Received: shape={answers.shape}."
        )
    axes = list(range(1, answers.shape.rank - 1))
    pairs = [
        tf.reduce_all(tf.equal(one, two), axis=axes)
        for one, two in itertools.combinations(tf.unstack(answers), 2)
    ]
    return tf.reduce_mean(tf.cast(tf.stack(pairs), tf.float32), axis=0)
