"""Selects one of several restarts of each sample."""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from deq_keras import solvers
from deq_keras.core import nonfinite
from deq_keras.core.checks import did_you_mean
from deq_keras.core.readout import check_answer, read_answers
from deq_keras.core.structure import Nest
from deq_keras.multistart.rows import (
    chosen_rows,
    relative_distances,
    same_answers,
    split_rows,
    stacked_answers,
    votes_for_majority,
)

# States within this relative distance count as the same equilibrium.
_SAME_DISTANCE = 0.01
_NAMES = ("residual", "vote")
_OUTSIDE = "`select` must return indices of restarts, from 0 to `restarts` - 1."


class SelectedSolution(NamedTuple):
    """The `deq_keras.solvers.Solution` of the restart chosen for each sample.

    Failed restarts, whose status is `DIVERGED`, agree with no other restart.

    Attributes:
        value: Nest like the state. `Solution` documents this and the next six.
        point: Nest like the state.
        residual: Float tensor `(batch,)`.
        status: Int32 tensor `(batch,)`.
        num_evaluations: Int32 tensor `(batch,)`.
        batch_evaluations: Int32 scalar. Evaluations of the whole batch, which contains
            all restarts.
        trace: Float tensor `(max_iter, batch)`.
        restart: Int32 tensor `(batch,)`. Index of the chosen restart. Restart 0 starts
            where a solve without restarts does.
        agreement: Float tensor `(batch,)` in [0, 1]. Fraction of all restarts,
            including the chosen one, that have its answer. Without `answer`, the
            fraction within a relative distance of 0.01.
        spread: Float tensor `(batch,)` in [0, 2]. The mean of |z - z'| / max(|z|, |z'|)
            over all restarts z' that did not fail, including the chosen one z.
        total_evaluations: Int32 tensor `(batch,)`. Evaluations of all restarts of a
            sample.
    """

    value: Nest
    point: Nest
    residual: tf.Tensor
    status: tf.Tensor
    num_evaluations: tf.Tensor
    batch_evaluations: tf.Tensor
    trace: tf.Tensor
    restart: tf.Tensor
    agreement: tf.Tensor
    spread: tf.Tensor
    total_evaluations: tf.Tensor


class Selection:
    """Chooses one of several restarts of every sample.

    The candidates are the converged restarts of a sample; if none converged, the
    restarts that did not fail; if all failed, the failed ones. Among the candidates:

    * `"residual"` selects the restart with the smallest residual. With a tolerance, all
      solves stop near the tolerance; with `tol=0.0`, the budget separates restarts.
    * `"vote"` determines the most frequent answer at each position, and selects the
      restart that agrees at the most positions. Of several, it selects the restart with
      the smallest residual. The result is therefore a computed equilibrium.

    Args:
        select: `"residual"`, `"vote"`, or a function from a
            `deq_keras.solvers.Solution` whose tensors are `(restarts, batch, ...)`, its
            trace `(max_iter, restarts, batch)`, to an integer tensor `(batch,)`, the
            index of the chosen restart. Defaults to `"residual"`.
        answer: Optional function from the results, a nest of `(batch, ...)` tensors, to
            answers, a nest of integer or Boolean tensors `(batch, ...)`, such as the
            `argmax` of a head's logits. `"vote"` and `agreement` compare these answers.

    Raises:
        ValueError: For another `select`, or `"vote"` without `answer`.

    Example:

    >>> solver = deq_keras.solvers.FixedPointIteration(max_iter=50)
    >>> starts = tf.constant([[0.1], [-0.2], [0.3]])  # Of one sample: two equilibria.
    >>> solution = solver.solve(
    ...     lambda z: tf.tanh(3.0 * z), deq_keras.solvers.SolveRequest(starts)
    ... )
    >>> selection = deq_keras.multistart.Selection("vote", answer=lambda z: z > 0.0)
    >>> selected = selection(solution, num_restarts=3)
    >>> round(float(selected.value[0, 0]), 2), round(float(selected.agreement[0]), 2)
    (0.99, 0.67)
    """

    def __init__(
        self,
        select: str | Callable[[solvers.Solution], tf.Tensor] = "residual",
        answer: Callable[[Nest], Nest] | None = None,
    ) -> None:
        if not callable(select) and select not in _NAMES:
            raise ValueError(
                "`select` must be 'residual', 'vote', or a function from the solutions "
                f"of all restarts to indices. Received: select={select!r}."
                + did_you_mean(select, _NAMES)
            )
        if select == "vote" and answer is None:
            raise ValueError(
                "A vote needs answers. Pass `answer`, a function from an equilibrium "
                "to an answer, such as the argmax of a head's logits. Received: "
                "select='vote', answer=None."
            )
        self.select = select
        self.answer = None if answer is None else check_answer(answer)

    def __call__(
        self, solution: solvers.Solution, num_restarts: int, source: Nest | None = None
    ) -> SelectedSolution:
        """Returns the `SelectedSolution` of the chosen restarts.

        Args:
            solution: `Solution` of `num_restarts * batch` samples: the batch of the
                first restart, then the batch of the second, and so on.
            num_restarts: Positive integer.
            source: Nest of `(num_restarts * batch, ...)` tensors from which `answer`
                computes answers. `None`: the equilibria.
        """
        answers = None
        if self.answer is not None:
            source = solution.value if source is None else source
            answers = stacked_answers(read_answers(self.answer, source), num_restarts)
        rows = _rows(solution)
        stacked = split_rows(rows, num_restarts)
        restart = self._chosen(
            stacked._replace(
                trace=tf.transpose(stacked.trace, [2, 0, 1]),
                batch_evaluations=solution.batch_evaluations,
            ),
            answers,
        )
        distances = relative_distances(solution.value, restart, num_restarts)
        if answers is None:
            is_same = distances <= _SAME_DISTANCE
        else:
            is_same = same_answers(answers, restart)
        is_usable = ~nonfinite.has_failed(stacked)
        chosen = chosen_rows(rows, restart)._replace(
            batch_evaluations=solution.batch_evaluations
        )
        fields = {**chosen._asdict(), "trace": tf.transpose(chosen.trace)}
        return SelectedSolution(
            **fields,
            restart=restart,
            agreement=_mean(is_same & is_usable, tf.ones_like(is_usable)),
            spread=_mean(distances, is_usable),
            total_evaluations=tf.reduce_sum(stacked.num_evaluations, axis=0),
        )

    def _chosen(
        self, solutions: solvers.Solution, answers: tf.Tensor | None
    ) -> tf.Tensor:
        """Returns the index of each sample's chosen restart, int32 `(batch,)`.

        Args:
            solutions: `Solution` whose tensors are `(restarts, batch, ...)`.
            answers: Integer tensor `(restarts, batch, positions)`, or `None`.
        """
        if callable(self.select):
            return _checked(self.select(solutions), solutions.status)
        rank = _rank(solutions)
        is_candidate = tf.equal(rank, tf.reduce_min(rank, axis=0))
        if self.select == "vote":
            votes = votes_for_majority(answers, is_candidate)
            votes = tf.where(is_candidate, votes, -1)
            is_candidate = tf.equal(votes, tf.reduce_max(votes, axis=0))
        residual = solutions.residual
        infinite = tf.constant(float("inf"), residual.dtype)
        residual = tf.where(is_candidate, residual, infinite)
        return tf.argmin(residual, axis=0, output_type=tf.int32)


def _rows(solution: solvers.Solution) -> Any:
    """Returns a `Solution` in which every tensor has a row for each sample."""
    return solution._replace(trace=tf.transpose(solution.trace), batch_evaluations=())


def _rank(solutions: solvers.Solution) -> tf.Tensor:
    """Returns the rank of each restart; the selection prefers lower ranks."""
    rank = tf.where(tf.equal(solutions.status, solvers.MAX_ITER), 1, 0)
    rank = tf.where(nonfinite.has_failed(solutions), 2, rank)
    return tf.where(nonfinite.has_no_evaluation(solutions), 3, rank)


def _mean(values: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """Returns the means over the restarts in `counts`, or 0 without any."""
    counted = tf.where(counts, tf.cast(values, tf.float32), 0.0)
    num = tf.reduce_sum(tf.cast(counts, tf.float32), axis=0)
    return tf.math.divide_no_nan(tf.reduce_sum(counted, axis=0), num)


def _checked(restart: Any, status: tf.Tensor) -> tf.Tensor:
    """Returns the indices that a function chose, if they are valid restarts."""
    restart = tf.convert_to_tensor(restart)
    expected = status.shape[1:]
    if not restart.dtype.is_integer or not restart.shape.is_compatible_with(expected):
        raise ValueError(
            "`select` must return an integer tensor (batch,), the index of a restart "
            f"for each sample. Expected: shape={expected}. Received: "
            f"shape={restart.shape}, dtype={restart.dtype.name}."
        )
    restart = tf.cast(restart, tf.int32)
    num_restarts, batch_size = tf.unstack(tf.shape(status))
    checks = [
        tf.debugging.assert_equal(
            tf.size(restart), batch_size, "`select` must return one index a sample."
        ),
        tf.debugging.assert_non_negative(restart, _OUTSIDE),
        tf.debugging.assert_less(restart, num_restarts, _OUTSIDE),
    ]
    # Checked now in eager mode, and in a graph before they are used.
    with tf.control_dependencies([check for check in checks if check is not None]):
        return tf.ensure_shape(tf.identity(restart), expected)
