"""One evaluation of f, as a solver sees it."""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from deq_keras.structure import Nest, StateStructure, squared_norm


class Evaluation(NamedTuple):
    """One evaluation of f, as matrices.

    Attributes:
        point: `(batch, features)`. Where f was evaluated: z.
        value: `(batch, features)`. f(z).
        residual: `(batch, features)`. g(z) = f(z) - z.
        squared_norm: `(batch, 1)`. |g(z)|^2.
    """

    point: tf.Tensor
    value: tf.Tensor
    residual: tf.Tensor
    squared_norm: tf.Tensor


def evaluate(
    fn: Callable[[Nest], Nest], structure: StateStructure, point: tf.Tensor
) -> Evaluation:
    """Evaluates `fn`, which takes and returns states, at a matrix.

    Raises:
        ValueError: If `fn` does not return a state of this structure.
    """
    state = fn(structure.to_state(point))
    structure.check(state, "What the function of a fixed-point problem returns")
    value = structure.to_matrix(state)
    residual = value - point
    return Evaluation(point, value, residual, squared_norm(residual))
