"""Stop when the answer is stable, even if the state still changes."""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf
from keras import tree

from deq_keras.core.checks import check_count
from deq_keras.core.readout import check_answer, read_answers
from deq_keras.core.structure import Nest


class Answers(NamedTuple):
    """The last answer of every sample.

    Attributes:
        answer: Nest of integer or Boolean tensors `(batch, ...)`.
        num_unchanged: Int32 tensor `(batch,)`. Evaluations since its last change.
    """

    answer: Nest
    num_unchanged: tf.Tensor


class UnchangedAnswer:
    """Stops a sample whose answer has not changed for some evaluations.

    What a user reads off a state often stands long before the state does, and on long
    inputs a small residual is no sign that it stands: the few positions that still
    change are few. Samples that end so have the status `UNCHANGED`.

    Args:
        answer: Function from a state, a nest of `(batch, ...)` tensors, to what is read
            off it: a nest of integer or Boolean tensors `(batch, ...)`, for example the
            `argmax` of a head's logits. It is called once an evaluation.
        patience: Positive integer. For how many evaluations in a row the answer must
            stand. Information moves a cell's reach an evaluation: a patience below the
            time that it takes for a change to arrive anywhere ends too early. Defaults
            to `4`.

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

    def start(self, state: Nest, batch_size: tf.Tensor) -> Answers:
        """Returns the `Answers` before the first evaluation: those of the start."""
        return Answers(
            read_answers(self.answer, state), tf.zeros([batch_size], tf.int32)
        )

    def update(self, answers: Answers, state: Nest) -> tuple[Answers, tf.Tensor]:
        """Compares the answers of a new state with the last ones.

        Args:
            answers: The `Answers` so far.
            state: Nest of `(batch, ...)` tensors.

        Returns:
            The new `Answers`, and of which samples they have stood for long enough, a
            Boolean tensor `(batch,)`.
        """
        answer = read_answers(self.answer, state)
        is_same = tree.map_structure(_equal_rows, answer, answers.answer)
        is_unchanged = tf.reduce_all(tf.stack(tree.flatten(is_same)), axis=0)
        num_unchanged = tf.where(is_unchanged, answers.num_unchanged + 1, 0)
        return Answers(answer, num_unchanged), num_unchanged >= self.patience


def _equal_rows(new: tf.Tensor, old: tf.Tensor) -> tf.Tensor:
    return tf.reduce_all(tf.equal(new, old), axis=list(range(1, new.shape.rank)))
