"""Agreement of the results from several initial states."""

import itertools

import tensorflow as tf

from deq_keras.core.structure import Nest, StateStructure


def alignment_score(states: Nest, others: Nest) -> tf.Tensor:
    """Returns the cosine similarity of two states of each sample.

    For results from two initial states, this is the asymptotic alignment of Anil et al.
    (2022). It is 1 if both solves found the same state or a positive multiple of it. It
    is also near 1 if all states share a large component, so check `answer_agreement`
    too.

    Args:
        states: Nest of floating-point tensors `(batch, ...)`.
        others: Nest with the same structure and shapes.

    Returns:
        Float tensor `(batch,)`, at least float32. 1 if both states are zero, 0 if
        exactly one is zero.

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
    """Returns the fraction of pairs of initial states with the same prediction.

    Args:
        answers: Integer tensor `(starts, batch, ...)`. Predictions from each of at
            least two initial states.

    Returns:
        Float32 tensor `(batch,)` in [0, 1]. Two predictions are the same if they are
        equal at every position.

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
