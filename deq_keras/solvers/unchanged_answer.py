"""A stopping rule for stable readouts, even if the state still changes."""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf
from keras import tree

from deq_keras.core.checks import check_count
from deq_keras.core.readout import check_answer, read_answers
from deq_keras.core.structure import Nest


class Answers(NamedTuple):
    """The latest readout of every sample.

    Attributes:
        answer: Nest of integer or Boolean tensors `(batch, ...)`. The readout.
        num_unchanged: Int64 tensor `(batch,)`. Evaluations since its last change.
    """

    answer: Nest
    num_unchanged: tf.Tensor


class UnchangedAnswer:
    """Stops a sample whose readout has not changed for `patience` evaluations.

    The readout is often final long before the state converges. On long inputs, a small
    residual does not guarantee a final readout: a few positions can still change
    without affecting the residual much. Stopped samples have the status `UNCHANGED`.

    Args:
        answer: Function from a state, a nest of `(batch, ...)` tensors, to a readout, a
            nest of integer or Boolean tensors `(batch, ...)`. For example, the `argmax`
            of a head's logits. It is called once per evaluation.
        patience: Positive integer. Number of consecutive evaluations without a change.
            One evaluation propagates information only within the cell's receptive
            field, so a small patience can stop before a change reaches the readout.
            Defaults to `4`.

    Example:

    >>> halting = deq_keras.solvers.UnchangedAnswer(
    ...     lambda state: tf.round(state) > 0, patience=3
    ... )
    >>> solver = deq_keras.solvers.FixedPointIteration(tol=None)
    >>> solution = solver.solve(
    ...     lambda z: 0.9 * z + 1.0,
    ...     deq_keras.solvers.SolveRequest(tf.zeros((1, 1)), halting=halting),
    ... )
    >>> int(solution.num_evaluations[0])
    4
    """

    def __init__(self, answer: Callable[[Nest], Nest], patience: int = 4) -> None:
        self.answer = check_answer(answer)
        self.patience = check_count("patience", patience)

    def read_through(self, state_of: Callable[[Nest], Nest]) -> "UnchangedAnswer":
        """Returns the same rule for iterates from which `state_of` computes states."""
        answer = self.answer
        return UnchangedAnswer(lambda iterate: answer(state_of(iterate)), self.patience)

    def start(self, state: Nest, batch_size: tf.Tensor) -> Answers:
        """Returns the `Answers` of the initial state."""
        return Answers(
            _on_device(read_answers(self.answer, state)),
            tf.zeros([batch_size], tf.int64),
        )

    def update(self, answers: Answers, state: Nest) -> tuple[Answers, tf.Tensor]:
        """Compares the readout of a new state with the previous one.

        Args:
            answers: The previous `Answers`.
            state: Nest of `(batch, ...)` tensors.

        Returns:
            The new `Answers` and a Boolean tensor `(batch,)`, which marks the samples
            that have been unchanged for `patience` evaluations.
        """
        answer = _on_device(read_answers(self.answer, state))
        is_same = tree.map_structure(_equal_rows, answer, answers.answer)
        is_unchanged = tf.reduce_all(tf.stack(tree.flatten(is_same)), axis=0)
        num_unchanged = answers.num_unchanged + 1
        num_unchanged = tf.where(
            is_unchanged, num_unchanged, tf.zeros_like(num_unchanged)
        )
        return Answers(answer, num_unchanged), num_unchanged >= self.patience


def _on_device(answer: Nest) -> Nest:
    """Returns an answer without int32, which TensorFlow keeps in the host's memory."""
    return tree.map_structure(
        lambda leaf: tf.cast(leaf, tf.int64) if leaf.dtype == tf.int32 else leaf,
        answer,
    )


def _equal_rows(new: tf.Tensor, old: tf.Tensor) -> tf.Tensor:
    return tf.reduce_all(tf.equal(new, old), axis=list(range(1, new.shape.rank)))
